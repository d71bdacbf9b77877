"""Starts processes of this machine through torch's own elastic launcher, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import uuid
from typing import TYPE_CHECKING

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fsdp_migrate.errors import RankError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


_RUN = """
import gc, runpy, signal, sys
gc.set_threshold(200_000, 20, 20)
signal.signal(signal.SIGINT, signal.SIG_DFL)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""What a process runs: a module that Ctrl-C, which the launcher passes on, ends at once.

A ``KeyboardInterrupt`` is lost where an import catches all, and late where a rank waits in C++ for another.
torch's launcher kills what still runs after 30 seconds, for which the user would wait. Garbage is collected
rarely, which saves a fifth of the time of importing torch.
"""


def launch_ranks(module: str, arguments: list[str], *, world_size: int, logs: Path) -> None:
    """Run ``python -m module arguments...`` on ``world_size`` processes of this machine, to their end.

    Their output goes to files under ``logs``. An interrupt ends them without a ``KeyboardInterrupt``.

    Raises:
        RankError: A process failed. It tells which, and its traceback.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port, so that two can run at the same time
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    with _quiet_launcher(), _signals_restored():
        try:
            elastic_launch(config, sys.executable)("-c", _RUN, module, *arguments)
        except ChildFailedError as error:
            raise RankError(_describe(error.failures)) from error
        except SignalException as error:
            # As Python itself would have ended: the command's exit codes go by that.
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from error
            raise SystemExit(128 + error.sigval) from error


def _describe(failures: dict[int, ProcessFailure]) -> str:
    lines = [f"{len(failures)} of the processes failed:"]
    for rank, failure in sorted(failures.items()):
        lines.append(f"rank {rank} (exit code {failure.exitcode}):")
        lines.append(_traceback(failure))
    return "\n".join(lines)


def _traceback(failure: ProcessFailure) -> str:
    message: object = failure.message  # a dict where torch's `record` wrote it
    if isinstance(message, dict):
        message = message.get("extraInfo", {}).get("py_callstack") or message.get("message")
    return str(message).rstrip()


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Keep the launcher's own log off the terminal: what it reports is in the error that it raises."""
    loggers = [logging.getLogger(f"torch.distributed.{part}") for part in ("elastic", "launcher")]
    before = [logger.propagate for logger in loggers]
    handler = logging.NullHandler()
    for logger in loggers:
        # Without a handler Python's logging prints warnings by its last resort.
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Put back the handlers that the launcher replaces and leaves replaced."""
    # Python sets handlers of signals in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
