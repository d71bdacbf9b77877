"""The command ``fsdp-migrate``. :func:`main` is the one place where errors become messages and exit codes.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a failure with one clear message, or a comparison that found differences |
| 2 | wrong usage |
| 3 | something would change, and ``--strict`` was given |
| 130 | interrupted; nothing is left of an unfinished output (143: terminated, 129: hung up) |
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, NoReturn

import typer

from fsdp_migrate.cli import torchrun
from fsdp_migrate.cli.app import app
from fsdp_migrate.cli.document import error_body, write_document
from fsdp_migrate.cli.typed import TYPED
from fsdp_migrate.errors import FindingsError, FSDPMigrateError, is_out_of_memory
from fsdp_migrate.visible import printable


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType


_NOTHING_LEFT = "Nothing is left of an unfinished output."
# click's UsageError, which typer keeps in one place or another depending on its version.
_UsageError = typer.BadParameter.__bases__[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv``, by default that of the process, and return the exit code."""
    if argv is None:  # the process is the command's own; torch's import alone makes a million objects
        gc.set_threshold(200_000, 20, 20)
    arguments = list(sys.argv[1:] if argv is None else argv)
    TYPED.set(tuple(arguments))
    try:
        with _end_on_signals():
            result = app(arguments, prog_name="fsdp-migrate", standalone_mode=False)
    except BaseException as error:  # torch's CheckpointException is no Exception
        if torchrun.is_quiet():
            return _explain(error)[1]
        code = _report(error, arguments)
        torchrun.dismiss()
        return code
    if result == 130:  # what newer versions of typer make of KeyboardInterrupt; older ones raise Abort
        return _report(KeyboardInterrupt(), arguments)
    return result if isinstance(result, int) else 0


def _report(error: BaseException, arguments: list[str]) -> int:
    """Say what happened on stderr, and on stdout in the document if one was asked for."""
    if isinstance(error, BrokenPipeError):
        # Whoever read the output went away. Python would complain once more when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, typer.Abort) and error.__cause__ is not None:
        error = error.__cause__
    message, code = _explain(error)
    if code > 128 and "--resume" in arguments:
        message = message.replace(_NOTHING_LEFT, "What is done is kept for the next `--resume`.")
    if "--json" in arguments:
        command = next((word for word in arguments if not word.startswith("-")), None)
        with contextlib.suppress(BrokenPipeError):
            write_document(command, error_body(error, message.removeprefix("Error: ")))
    if message:
        sys.stderr.write(f"{printable(message)}\n")
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code that stand for ``error``."""
    if isinstance(error, _UsageError):
        return _explain_usage(error)
    if isinstance(error, KeyboardInterrupt):
        return f"Interrupted. {_NOTHING_LEFT}", 130
    if isinstance(error, SystemExit):
        return _explain_exit(error)
    # Ours first: each is also the builtin that a caller would expect, such as an OSError.
    if isinstance(error, FSDPMigrateError):
        code = 3 if isinstance(error, FindingsError) and error.strict else 1
        return f"Error: {error}", code
    # By name: torch is not loaded to ask.
    if type(error).__name__ == "CheckpointException":
        return f"Error: {_first_failure(error)}", 1
    # Before the system's errors, some of which say so.
    if is_out_of_memory(error):
        text = "there is not enough memory. Give the process more, or lower `--buffer` where it is an option."
        return f"Error: {text} {_NOTHING_LEFT}", 1
    if isinstance(error, RecursionError):
        return f"Error: something in the input is nested too deeply to be read. {_NOTHING_LEFT}", 1
    if isinstance(error, OSError):
        where = f": {error.filename!r}" if error.filename else ""
        return f"Error: {error.strerror or error}{where}", 1
    text = "".join(traceback.format_exception(error))
    return f"{text}This is a bug in fsdp-migrate. Report it to its maintainers with these lines.", 1


def _explain_usage(error: BaseException) -> tuple[str, int]:
    message = str(getattr(error, "format_message", lambda: str(error))())
    # What pydantic prefixes, in the versions of typer that use it.
    message = message.replace(": Value error, ", ": ", 1)
    context = getattr(error, "ctx", None)
    if not message or context is None:  # no command was given, and the help has been shown
        return message, 2
    return f"{context.get_usage()}\nTry `{context.command_path} --help`.\n\nError: {message}", 2


def _explain_exit(error: SystemExit) -> tuple[str, int]:
    code = error.code if isinstance(error.code, int) else 1
    # Below 128 it is typer, to which the reader of the output is no longer listening.
    return (f"Terminated. {_NOTHING_LEFT}" if code > 128 else "", code)


def _first_failure(error: BaseException) -> str:
    """Return what the first failing rank said, of the many lines of torch's CheckpointException."""
    failures = getattr(error, "failures", None)
    if not failures:
        return str(error)
    rank = min(failures)
    return f"torch could not read or write a checkpoint; rank {rank} says: {failures[rank][0]!r}"


@contextlib.contextmanager
def _end_on_signals() -> Iterator[None]:
    """Turn a request to end into an exception, so that unfinished output is removed on the way out."""
    # Python sets handlers of signals in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)
