"""A limit for each test, kept by another process.

A main thread that sits in C++ with Python's lock held hears no signal that Python handles, and lets no other
thread of Python run. So a process beside this one keeps the time, and ends this one with all that it has
started. Under pytest-xdist that is one failed test, with the stack; the other tests go on.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.quick import starts_processes
from tools.run_lanes import end_with_descendants


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600.0
"""Seconds, fixtures included. More than any `run_ranks` has, which shows where each rank stands."""
_END_LIMIT = 60.0  # seconds for the end of the process, in which C++ is torn down
_STACKS = "FSDP_MIGRATE_TEST_STACKS"
_STACK_SIGNAL = signal.SIGUSR2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-limit", type=float, default=LIMIT, help="seconds after which a test is ended, as failed"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder for stacks, which the processes that pytest-xdist starts inherit."""
    if _STACKS not in os.environ:
        os.environ[_STACKS] = tempfile.mkdtemp(prefix="stacks-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(_STACKS)))
    config.pluginmanager.register(FailuresAtOnce(config), "tests-failures-at-once")


class FailuresAtOnce:
    """Names what failed when it did: a run that is ended from outside comes to no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        screen = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and screen is not None:
            screen.write_line(f"\nfailed: {report.nodeid}")


class TimeLimit:
    """What a process that runs tests tells its watcher."""

    def __init__(self, config: pytest.Config) -> None:
        self.limit: float = config.getoption("--time-limit")
        stack = stack_of(os.environ.get("PYTEST_XDIST_WORKER", "main"))
        faulthandler.register(_STACK_SIGNAL, file=stack.open("w"), all_threads=True)
        command = [sys.executable, "-m", "tests.time_limit", str(os.getpid()), str(stack)]
        self.watcher = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)

    def tell(self, limit: float | None, name: str) -> None:
        assert self.watcher.stdin is not None
        self.watcher.stdin.write(json.dumps([limit, name]).encode() + b"\n")
        self.watcher.stdin.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell(self.limit, item.nodeid)
        try:
            return (yield)
        finally:
            self.tell(None, "")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A process that pytest-xdist has started waits here for the others, however long they take.
        if not hasattr(session.config, "workerinput"):
            self.tell(_END_LIMIT, "the end of the process")


def pytest_collection_finish() -> None:
    """Keep the tests themselves, which live to the end, out of every round of the collector."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Keep Python, as it ends, from looking through a million objects again and again, for seconds."""
    gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the watcher, which inherits the real stderr: nothing is captured now."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(TimeLimit(config), "tests-time-limit")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: Any) -> None:
    """Show the stack in the report of a test whose process was ended."""
    stack = stack_of(report.node.gateway.id)
    if stack.exists():
        report.longrepr = f"{report.longrepr}\n{stack.read_text(errors='replace')}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files with tests that start processes first: at the end short ones fill what is left of a core."""
    if hasattr(config, "workerinput"):
        known: dict[CodeType, bool] = {}
        long = {item.path for item in items if starts_processes(item, known)}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Give out files so that a process which was ended is replaced by one that gets its files."""
    if config.getvalue("dist") != "loadfile":
        return None
    # By itself pytest-xdist keeps files of few tests to the end: those that take longest.
    config.option.loadscopereorder = False
    return Files(config, log)


class Files(LoadFileScheduling):
    """Gives each file to one process, also when one has ended.

    pytest-xdist 3.8 gives the next process what the ended one had, with files of which every test has run: it
    waits there for a test that is done, and nobody wakes it. The test that ended it comes again as well. And
    a process that still looks for its tests is given some when another one ends: a KeyError.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take back what a process has not run, but the test in which it ended."""
        files = self.assigned_work[node]
        ended = next((name for file in files.values() for name, is_done in file.items() if not is_done), None)
        for path, file in list(files.items()):
            if ended in file:
                file[ended] = True
            if all(file.values()):
                del files[path]
        super().remove_node(node)
        return ended

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:
            super()._reschedule(node)

    def schedule(self) -> None:
        """Give out files; a process begins the last test that it knows of only when it hears what follows."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


def stack_of(worker: str) -> Path:
    return Path(os.environ[_STACKS]) / worker


def is_gone(pid: int) -> bool:
    """Wait a little for a process to end; one that nobody has waited for is gone as well."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def keep_time(pid: int, stack: IO[str]) -> None:
    """Read what runs and how long it may, a line each; end the process that takes longer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all; this ends when stdin does
    limit: float | None = None
    name, since = "", 0.0
    while True:
        left = None if limit is None else max(0.0, since + limit - time.monotonic())
        if not select.select([sys.stdin], [], [], left)[0]:
            break
        lines = os.read(sys.stdin.fileno(), 1 << 16).splitlines()
        if not lines:
            return
        limit, name = json.loads(lines[-1])
        since = time.monotonic()
    os.kill(pid, _STACK_SIGNAL)
    _wait_for_stack(stack.fileno())
    shown, took = stack.read(), f"\n{name} took longer than {limit:g} s."
    # Before the end: pytest-xdist reads the file as soon as the process is gone.
    stack.write(took)
    stack.flush()
    number = end_with_descendants(pid)
    sys.stderr.write(f"{took} It was ended, with all that it had started: {number}.\n{shown}\n")


def _wait_for_stack(stack: int) -> None:
    """Wait until the stack is written, however loaded the machine is; one that never begins is not there."""
    # By its number: a process that hangs at its end has removed the name.
    deadline = time.monotonic() + 30
    size = -1
    while time.monotonic() < deadline and (size < 1 or size != os.fstat(stack).st_size):
        size = os.fstat(stack).st_size
        time.sleep(1)


if __name__ == "__main__":
    # Opened now: at its end the watched process removes the folder.
    with Path(sys.argv[2]).open("r+", errors="replace") as file:
        keep_time(int(sys.argv[1]), file)
