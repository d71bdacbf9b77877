"""Bad input through the whole command: exit 1, one clear message, the source untouched, nothing left."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main
from tests.cli.conftest import fingerprint


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def no_metadata(folder: Path) -> None:
    (folder / ".metadata").unlink()


def truncated_data(folder: Path) -> None:
    os.truncate(_data_files(folder)[0], 1000)


def missing_data(folder: Path) -> None:
    _data_files(folder)[-1].unlink()


def no_pickle(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"this is no pickle")


def outside(folder: Path) -> None:
    name = _data_files(folder)[0].name
    _edit(folder, name.encode(), b"../".ljust(len(name), b"x"))


def _data_files(folder: Path) -> list[Path]:
    """Return the files of data, which torch and a conversion call otherwise."""
    return sorted(folder.glob("*.distcp"))


def _edit(folder: Path, old: bytes, new: bytes) -> None:
    data = (folder / ".metadata").read_bytes()
    assert len(old) == len(new)
    assert old in data
    (folder / ".metadata").write_bytes(data.replace(old, new))


class Gadget:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def gadget(folder: Path) -> None:
    proof = folder.parent / "it-ran"
    (folder / ".metadata").write_bytes(pickle.dumps(Gadget(os.system, f"touch {proof}")))


def torch_file(folder: Path) -> None:
    import torch

    shutil.rmtree(folder)
    torch.save([torch.zeros(2)], folder)


def overlap(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    metadata = dcp.FileSystemReader(folder).read_metadata()
    tensor = metadata.state_dict_metadata["model.0.linear.weight"]
    tensor.chunks[1].offsets = tensor.chunks[0].offsets  # type: ignore[union-attr]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


DAMAGES: dict[Callable[[Path], None], str] = {
    missing: "source",
    empty: "source",
    no_metadata: ".metadata",
    truncated_data: ".distcp",
    missing_data: ".distcp",
    no_pickle: ".metadata",
    outside: "../xxx",
    gadget: "system",
    torch_file: "state dict",
    overlap: "model.0.linear.weight",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("command", ["inspect", "convert", "verify"])
def test_a_bad_source_is_named_and_nothing_is_written(
    clean: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    command: str,
) -> None:
    source = tmp_path / "source"
    shutil.copytree(clean, source)
    damage(source)
    before = fingerprint(source)
    second = {"inspect": [], "convert": [str(tmp_path / "out")], "verify": [str(clean)]}[command]
    assert main([command, str(source), *second]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert "Traceback" not in printed.err
    assert DAMAGES[damage] in printed.err
    assert fingerprint(source) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"source"}, "something was left, or it ran"


@pytest.mark.parametrize("place", ["source", "source/inside"])
def test_an_output_in_the_source_is_refused(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(clean, source)
    before = fingerprint(source)
    assert main(["convert", str(source), str(tmp_path / place), "--overwrite"]) == 1
    assert "source" in capsys.readouterr().err
    assert fingerprint(source) == before


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_an_output_that_cannot_be_written_leaves_nothing(clean: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fsdp_migrate", "convert", str(clean), str(tmp_path / "out")]
    result = subprocess.run(
        [*command, "--world-size", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        preexec_fn=_limit_file_size,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


# The command, but slow: it tells on stdout that it is writing, and waits to be interrupted. In short sleeps,
# for a signal that comes just before a sleep begins does not end it.
SLOW = """
import contextlib, sys, time
import fsdp_migrate.cli as cli
from fsdp_migrate.cli.render import progress as shown

@contextlib.contextmanager
def progress(verb):
    def wait(event):
        print("writing", flush=True)
        for _ in range(300):
            time.sleep(0.1)
    yield wait

shown.watch_progress = progress
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupt_in_the_middle_leaves_nothing(
    clean: Path, tmp_path: Path, number: int, code: int
) -> None:
    before = fingerprint(clean)
    command = [sys.executable, "-c", SLOW, "convert", str(clean), str(tmp_path / "out"), "--world-size", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert [path.name.startswith("out.partial-") for path in tmp_path.iterdir()] == [True]
        process.send_signal(number)
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "Nothing is left" in errors
    assert list(tmp_path.iterdir()) == []
    assert fingerprint(clean) == before


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("--rename", "stages"),
        ("--rename", "(=x"),
        ("--max-shard-size", "huge"),
        ("--to", "fsdp2"),
        ("--dtype", "fp8"),
    ],
)
def test_a_word_that_an_option_does_not_know_is_wrong_usage(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, word: str
) -> None:
    assert main(["convert", str(clean), str(tmp_path / "out"), option, word]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{option}': " in said
    assert word in said
    assert "Value error" not in said


def test_the_document_has_the_message_and_no_prefix(
    clean: Path, tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json("convert", clean, tmp_path)
    assert code == 1
    assert document["error"]["message"].startswith(repr(str(tmp_path)))
    assert "--overwrite" in document["error"]["message"]
