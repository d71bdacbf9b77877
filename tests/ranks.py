"""Runs a function on several ranks, over gloo: the harness of every test that needs a process group.

Ranks are forked from a server that has torch loaded already, which starts two of them in well under
a second; ``torch.multiprocessing.spawn`` takes two. Forking pytest itself would hand down its
threads.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.distributed as dist

import tests.rank_bodies


if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess


T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
# Longer than any run's: a rank that waits in vain is then ended by the run, which shows where each stands.
GLOO_TIMEOUT = timedelta(minutes=15)
GRACE = 5.0
"""Seconds for the others after a failure: a healthy rank often reports before the culprit."""

_STACK_SIGNAL = signal.SIGUSR1
_SECOND_HAND = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class RanksFailedError(AssertionError):
    """At least one rank failed; ``failures`` maps each failing rank to what is known about it."""

    def __init__(self, failures: dict[int, str], world_size: int) -> None:
        self.failures = failures
        names = ", ".join(map(str, sorted(failures)))
        # Those that only felt the death of another come last: the cause stands at the top.
        order = sorted(failures, key=lambda rank: (_is_second_hand(failures[rank]), rank))
        cause = failures[order[0]].split("\nits output:")[0].rstrip().rsplit("\n", 1)[-1]
        parts = [f"{len(failures)} of {world_size} ranks failed: {names}; rank {order[0]}: {cause[:200]}"]
        parts += [f"---- rank {rank}\n{failures[rank].rstrip()}" for rank in order]
        super().__init__("\n".join(parts))


def run_ranks(
    fn: Callable[..., T],
    *args: object,
    world_size: int = 2,
    timeout: float = 400,
    master_port: int | None = None,
    backend: str = "gloo",
) -> list[T]:
    """Run ``fn(*args)`` on every rank of a new group and return what each rank returned.

    The group is gloo's, or that of the module of ``tests`` that ``backend`` names (``shared_gpu``).
    ``fn`` is a function of an importable module; ``torch.distributed`` tells it its rank. Arguments
    and results travel as pickles, so tensors are copied. The parent asserts: pytest rewrites no
    asserts in ranks. Ranks inherit the environment of the first call in the session, and no later
    change of it. With ``master_port`` no group is made: ``fn`` finds the environment that torchrun gives its
    scripts, with the store of that port.

    Raises:
        RanksFailedError: A rank raised, died or did not finish within ``timeout`` seconds. Each is
            named.
    """
    sys.audit("tests.run_ranks")
    context = _start_server()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        group = [_Rank(rank, Path(folder)) for rank in range(world_size)]
        payload = pickle.dumps((fn, args))
        processes = []
        try:
            for rank in group:
                process = context.Process(
                    target=_run_one,
                    args=(rank, world_size, payload, master_port, backend, timeout + 4 * GRACE),
                    daemon=True,
                )
                process.start()
                processes.append(process)
            failures = _wait(group, processes, timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()
        if failures:
            raise RanksFailedError(failures, world_size)
        return [pickle.loads(rank.result.read_bytes()) for rank in group]


@dataclass(frozen=True)
class _Rank:
    """Where one rank leaves what it has to say."""

    number: int
    folder: Path

    @property
    def result(self) -> Path:
        return self.folder / f"result-{self.number}"

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.number}"

    @property
    def failure(self) -> Path:
        return self.folder / f"failure-{self.number}"


def _start_server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    bodies = [f"tests.rank_bodies.{m.name}" for m in pkgutil.iter_modules(tests.rank_bodies.__path__)]
    beside = sorted((ROOT / "tests").rglob("*_bodies.py"))
    bodies += [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in beside]
    # torch imports its compiler at the first forward of a sharded model: a second of each rank's time.
    torch_needs = ["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo", "fsspec"]
    # Where they are installed: two seconds of each rank that runs Composer's Trainer.
    frameworks = ["composer", "transformers.modeling_utils"]
    context.set_forkserver_preload(
        ["tests", *torch_needs, *frameworks, "tests.ranks", *bodies, "tests.warmed", "tests.frozen"]
    )
    # The server finds the preloaded modules on PYTHONPATH only, and keeps silent if it does not.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _wait(group: list[_Rank], processes: list[ForkServerProcess], timeout: float) -> dict[int, str]:
    """Wait for all ranks, or for the grace period after the first failure; return what failed."""
    deadline = time.monotonic() + timeout
    running = dict(zip(group, processes, strict=True))
    failures: dict[int, str] = {}
    while running and (left := deadline - time.monotonic()) > 0:
        connection.wait([p.sentinel for p in running.values()], left)
        for rank, process in [(r, p) for r, p in running.items() if p.exitcode is not None]:
            del running[rank]
            if process.exitcode or not rank.result.exists():
                failures[rank.number] = _describe_exit(rank, process.exitcode)
                deadline = min(deadline, time.monotonic() + GRACE)
    after_failure = bool(failures)
    for process in running.values():
        if process.pid is not None:
            os.kill(process.pid, _STACK_SIGNAL)
    if running:
        time.sleep(0.5)
    for rank in running:
        reason = (
            f"was still running {GRACE:g} s after another rank failed, and was killed"
            if after_failure
            else f"did not finish within {timeout:g} s, and was killed"
        )
        failures[rank.number] = f"{reason}{_read_log(rank)}"
    return failures


def _describe_exit(rank: _Rank, exitcode: int | None) -> str:
    if rank.failure.exists():
        return rank.failure.read_text() + _read_log(rank)
    return f"died with exit code {exitcode} and left no traceback{_read_log(rank)}"


def _read_log(rank: _Rank) -> str:
    text = rank.log.read_text(errors="replace").strip() if rank.log.exists() else ""
    return f"\nits output:\n{text}" if text else ""


def _is_second_hand(failure: str) -> bool:
    return any(sign in failure for sign in _SECOND_HAND)


def _run_one(
    rank: _Rank, world_size: int, payload: bytes, master_port: int | None, backend: str, limit: float
) -> None:
    """Run in the rank: set up, call, leave the result; or leave the traceback and exit 1."""
    # Should the parent be gone by then, nobody else ends this process.
    faulthandler.dump_traceback_later(limit, exit=True, file=2)
    with rank.log.open("wb", buffering=0) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.register(_STACK_SIGNAL, file=2, all_threads=True)
    warnings.resetwarnings()  # FSDP1 warns of its own end; what a rank warns of is no error
    try:
        result = pickle.dumps(_call(rank, world_size, payload, master_port, backend))
    except BaseException:
        rank.failure.write_text(traceback.format_exc())
        sys.stderr.flush()
        # Leaving at once closes the sockets, so that the other ranks notice and run into no
        # timeout.
        os._exit(1)
    rank.result.write_bytes(result)
    sys.stdout.flush()
    _wait_for_others(rank, world_size)
    os._exit(0)  # sooner than the group and the interpreter end


def _wait_for_others(rank: _Rank, world_size: int) -> None:
    """Keep the sockets open until every rank has left what it had to say: one may still be in the barrier."""
    others = [_Rank(number, rank.folder) for number in range(world_size)]
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        if all(other.result.exists() or other.failure.exists() for other in others):
            return
        time.sleep(0.005)


def _call(rank: _Rank, world_size: int, payload: bytes, master_port: int | None, backend: str) -> object:
    number = str(rank.number)
    os.environ.update(
        RANK=number, LOCAL_RANK=number, WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    torch.set_num_threads(1)
    fn, args = pickle.loads(payload)
    if master_port is not None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master_port), TORCHELASTIC_USE_AGENT_STORE="True"
        )
        return fn(*args)
    if backend != "gloo":
        importlib.import_module(f"tests.{backend}")
    dist.init_process_group(
        backend,
        init_method=f"file://{rank.folder / 'store'}",  # no port to collide on
        rank=rank.number,
        world_size=world_size,
        timeout=GLOO_TIMEOUT,
    )
    result = fn(*args)
    # Without the barrier a rank may tear its sockets down while another still uses them.
    dist.barrier()
    return cast("object", result)
