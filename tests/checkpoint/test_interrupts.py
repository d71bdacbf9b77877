"""Ctrl-C at any moment: it is what is raised, and nothing stays behind that hinders the next one."""

from __future__ import annotations

import _thread
import gc
import linecache
import random
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    check_checkpoint,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.errors import OutputError
from tests.checkpoint import fault_sources
from tests.checkpoint.samples import contents


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


ROOT = Path(__file__).parents[2] / "checkpoint_convert"
# Where files, threads and locks are; pure functions have nothing to leave behind.
TRACED = tuple(
    str(ROOT / name) for name in ("convert.py", "execution", "outputs", "sources/read.py", "storage")
)
# Lines at which CPython hears of no signal, but a trace function can raise: a `with` comes once more when its
# block is left, and the instruction of a `try` belongs to no block. A lock around them would be held for
# good.
DEAF = ("with ", "try:")
MOMENTS = 20


class Interrupts:
    """Counts the lines that this thread runs, and raises at one of them what Ctrl-C raises."""

    def __init__(self) -> None:
        self.count, self.at = 0, 0

    def run(self, work: Callable[[], object], at: int) -> None:
        """Do some work up to a line of it; 0 for all of it."""
        self.count, self.at = 0, at
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._step if frame.f_code.co_filename.startswith(TRACED) else None

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        # A generator that nobody needs any more is closed: it returns, and what is raised there is dropped.
        if event != "line":
            return self._step
        if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(DEAF):
            return self._step
        self.count += 1
        if self.count == self.at:
            if is_finalizer(frame):  # Python drops what is raised in one, and goes on
                self.at += 1
                return self._step
            raise KeyboardInterrupt
        return self._step


def is_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def works(folder: Path) -> dict[str, Callable[[], object]]:
    source, out = folder / "source.pt", folder / "out"
    full = OutputOptions(state_dict_type="full")
    return {
        "inspect": lambda: inspect_checkpoint(source),
        "plan": lambda: plan_conversion(inspect_checkpoint(source), to="accelerate"),
        "check": lambda: check_checkpoint(folder / "whole"),
        "verify": lambda: verify_checkpoints(source, folder / "whole"),
        "convert": lambda: convert_checkpoint(source, out, to="torch", world_size=2, checksums=True),
        "full": lambda: convert_checkpoint(source, out, to="accelerate", output_options=full),
        "replace": lambda: convert_checkpoint(source, out, to="torch", overwrite=True),
    }


@pytest.mark.parametrize("kind", ["inspect", "plan", "check", "verify", "convert", "full", "replace"])
def test_interrupted_at_any_moment(kind: str, tmp_path: Path) -> None:
    source = fault_sources.one_file(tmp_path)
    before = source.read_bytes()
    convert_checkpoint(source, tmp_path / "whole", to="torch")
    work, interrupts, out = works(tmp_path)[kind], Interrupts(), tmp_path / "out"
    interrupts.run(work, 0)
    wanted = contents(out).keys() if out.exists() else None
    lines = range(1, interrupts.count + 1)
    for at in random.Random(f"interrupts {kind}").sample(lines, min(MOMENTS, len(lines))):
        shutil.rmtree(out, ignore_errors=True)
        if kind == "replace":
            shutil.copytree(tmp_path / "whole", out)
        threads = _thread._count()
        try:
            interrupts.run(work, at)
        except KeyboardInterrupt:
            pass
        else:
            # Threads share the work anew each time: this one may have had fewer lines to run.
            assert interrupts.count < interrupts.at, "Ctrl-C was swallowed"
        for _ in range(200):
            if _thread._count() <= threads:
                break
            time.sleep(0.01)
        assert _thread._count() <= threads, at
        # It is whole, or what it was, or not there.
        assert not out.exists() or contents(out).keys() == wanted, at
        assert kind != "replace" or out.exists()
        if wanted is not None:
            try:
                convert_checkpoint(source, out, to="torch", overwrite=True)
            except OutputError:
                # What nobody refers to any more lets go of its lock.
                gc.collect()
                convert_checkpoint(source, out, to="torch", overwrite=True)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source.pt", "whole"]
    assert source.read_bytes() == before
