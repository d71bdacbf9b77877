"""Runs of commands, each a process of its own: their time, their memory, and the ratios of two of them."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """What a command took.

    Attributes:
        seconds: From its start to its end.
        processor: How long it kept a core busy, with the processes that it started.
        resident: The most memory that it had, in bytes; what processes that it started had is not in it.
        private: The most of that which was its own, and not the page cache's.
        told: The seconds that it printed itself as the last thing, if it did.
    """

    seconds: float
    processor: float
    resident: int
    private: int
    told: float | None


@dataclass(frozen=True)
class Job:
    """A command, and what it writes, which is removed after it unless it is kept."""

    command: Sequence[str]
    writes: Sequence[Path]
    keeps: bool = False


def take_turns(jobs: Mapping[str, Job], runs: int) -> dict[str, Run]:
    """Run all jobs in turns, so that whatever else the machine does falls on all; return their medians.

    Args:
        jobs: The sides of a comparison, by name.
        runs: How often each is run.
    """
    taken: dict[str, list[Run]] = {name: [] for name in jobs}
    for _ in range(runs):
        for name, job in jobs.items():
            run = _run(job)
            taken[name].append(run)
            shown = f"{run.seconds:6.2f} s, {run.processor:6.2f} s busy, {run.resident / MIB:5.0f} MiB"
            print(f"  {shown}  {name}", file=sys.stderr)
    return {name: _typical(found) for name, found in taken.items()}


def _typical(runs: Sequence[Run]) -> Run:
    """Return the median times of some runs, and the most memory that one of them took."""
    told = [run.told for run in runs if run.told is not None]
    return Run(
        seconds=statistics.median(run.seconds for run in runs),
        processor=statistics.median(run.processor for run in runs),
        resident=max(run.resident for run in runs),
        private=max(run.private for run in runs),
        told=statistics.median(told) if told else None,
    )


def _run(job: Job) -> Run:
    _remove(job)
    # What the last one left to be written is not this one's to wait for.
    os.sync()
    start, before = time.perf_counter(), _processor()
    process = subprocess.Popen(job.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks = {"RssAnon": 0, "VmHWM": 0}
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
    watcher.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - start
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"{' '.join(job.command)[:200]} failed with exit code {process.returncode}:\n{err[-4000:]}")
    if not job.keeps:
        _remove(job)
    processor = _processor() - before
    return Run(seconds, processor, peaks["VmHWM"] * 1024, peaks["RssAnon"] * 1024, _last_number(out))


def _processor() -> float:
    """Return the seconds that all commands so far kept a core busy."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _remove(job: Job) -> None:
    for path in job.writes:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _last_number(text: str) -> float | None:
    try:
        return max(float(line) for line in text.split())
    except ValueError:
        return None


def _watch(pid: int, peaks: dict[str, int]) -> None:
    """Keep the highest memory of a process, as the system tells it, until it ends."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            lines = status.read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        found = {line.split(":")[0]: line.split()[1] for line in lines if len(line.split()) > 1}
        if "VmHWM" not in found:
            return
        for name, peak in peaks.items():
            peaks[name] = max(peak, int(found[name]))
        time.sleep(0.02)


@dataclass(frozen=True)
class Figure:
    """A ratio, and the bound that it has; without one it is only shown."""

    what: str
    ours: float
    theirs: float
    unit: str
    bound: float | None = None
    is_least: bool = False

    @property
    def ratio(self) -> float:
        """Return ours by theirs."""
        return self.ours / self.theirs

    @property
    def is_within(self) -> bool:
        """Tell whether it keeps its bound."""
        if self.bound is None:
            return True
        return self.ratio >= self.bound if self.is_least else self.ratio <= self.bound

    def line(self) -> str:
        """Return it in words."""
        start = f"{self.what:58s} {self.ours:7.2f} / {self.theirs:7.2f} {self.unit:3s} = {self.ratio:6.3f}"
        if self.bound is None:
            return f"{start}  (only shown)"
        word = "at least" if self.is_least else "at most"
        return f"{start}  ({word} {self.bound:.3f}: {'ok' if self.is_within else 'OUT OF BOUNDS'})"

    def as_dict(self) -> dict[str, object]:
        """Return plain JSON data."""
        return {
            "what": self.what,
            "ours": self.ours,
            "theirs": self.theirs,
            "unit": self.unit,
            "ratio": self.ratio,
            "bound": self.bound,
            "is_within": self.is_within,
        }


def time_ratio(what: str, ours: Run, theirs: Run, bound: float | None) -> Figure:
    """Compare the times of two runs."""
    return Figure(f"{what}, time", ours.seconds, theirs.seconds, "s", bound)


def memory_ratio(what: str, ours: Run, theirs: Run, bound: float | None) -> Figure:
    """Compare the resident memory of two runs."""
    return Figure(f"{what}, memory", ours.resident / MIB, theirs.resident / MIB, "MiB", bound)
