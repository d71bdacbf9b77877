"""The one place where errors become messages, documents and exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer

import fsdp_migrate.cli
from fsdp_migrate import errors
from fsdp_migrate.cli import main
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.any_torch


class CheckpointException(BaseException):
    def __init__(self) -> None:
        super().__init__("CheckpointException ranks:dict_keys([1])")
        self.failures = {1: (RuntimeError("Missing key in checkpoint"), None)}


CHANGED = make_finding("FM009", "backward_prefetch", "BACKWARD_POST.")
CASES = [
    (errors.CheckpointNotFoundError("There is nothing at '/x'.", path="/x"), 1, "There is nothing at '/x'."),
    (errors.ConfigError("Unknown.", field="dtype"), 1, "Unknown."),
    (errors.FindingsError("1 thing would change.", findings=[CHANGED], strict=True), 3, "would change"),
    (errors.FindingsError("1 thing cannot.", findings=[CHANGED], strict=False), 1, "1 thing cannot."),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out/a"), 1, "No space left on device: '/out/a'"),
    (CheckpointException(), 1, "rank 1 says: RuntimeError('Missing key in checkpoint')"),
    (KeyboardInterrupt(), 130, "Interrupted"),
    (MemoryError(), 1, "there is not enough memory"),
    (RuntimeError("can't start new thread"), 1, "there is not enough memory"),
    (ImportError("libx.so: failed to map segment from shared object"), 1, "there is not enough memory"),
    (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
    (OSError(errno.EIO, os.strerror(errno.EIO), "/x"), 1, "Input/output error: '/x'"),
    (EOFError("cut short"), 1, "This is a bug in fsdp-migrate"),
    (SystemExit(143), 143, "Terminated"),
    (ZeroDivisionError("division by zero"), 1, "This is a bug in fsdp-migrate"),
    (typer.BadParameter("no such thing"), 2, "no such thing"),
]
IDS = [type(error).__name__ + str(code) for error, code, _ in CASES]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make every command raise the given error."""

    def install(error: BaseException) -> None:
        app = typer.Typer()

        @app.command()
        def inspect(rest: list[str], json: bool = False) -> None:
            raise error

        app.callback()(lambda: None)
        monkeypatch.setattr(fsdp_migrate.cli, "app", app)

    return install


@pytest.mark.parametrize(("error", "code", "message"), CASES, ids=IDS)
def test_every_error_has_a_message_and_an_exit_code(
    fail: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    fail(error)
    assert main(["inspect", "x"]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert ("Traceback" in printed.err) == ("a bug" in message)


@pytest.mark.parametrize(("error", "code", "message"), CASES, ids=IDS)
def test_with_json_every_error_is_one_document(
    fail: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    fail(error)
    assert main(["inspect", "x", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["command"] == "inspect"
    assert document["error"]["type"] == type(error).__name__
    assert message in document["error"]["message"]


def test_the_document_holds_what_the_error_knows(
    fail: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fail(errors.PlanError("2 reasons.", findings=[CHANGED], path="/ckpt"))
    assert main(["inspect", "/ckpt", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["path"] == "/ckpt"
    assert error["findings"] == [CHANGED.as_dict()]


def test_the_handlers_of_signals_are_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    main(["--help"])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    assert "convert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_command_and_cleans_up(number: int, code: int) -> None:
    program = f"""
import os, signal, sys
import fsdp_migrate.cli as cli
signal.signal(signal.SIGINT, signal.default_int_handler)
def app(*args, **kwargs):
    try:
        os.kill(os.getpid(), {int(number)})
        signal.pause()
    finally:
        sys.stderr.write("cleaned up\\n")
cli.app = app
sys.exit(cli.main(["convert", "a", "b"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=400
    )
    assert result.returncode == code
    assert "cleaned up" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_bug() -> None:
    program = "import sys\nfrom fsdp_migrate.cli import main\nsys.exit(main(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors_seen = process.stderr.read()
    assert process.returncode in (0, 1)
    assert errors_seen == ""
