"""Each allocation of more than a mebibyte fails once: nothing is lost, and the error is one of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from fsdp_migrate.errors import CheckpointFormatError, CheckpointMemoryError
from tests.checkpoint.samples import PLAIN, assert_nothing_left, save_with_torch
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WAYS: dict[str, dict[str, Any]] = {
    "cast": {"dtype": "bf16", "buffer_bytes": 4 << 20},
    "divided": {"world_size": 3, "checksums": True},
    "hf": {"to": "hf"},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_large_allocation_fails(way: str, tmp_path: Path) -> None:
    weights = {f"layer.{n}.weight": torch.arange(float(1 << 20)).reshape(1024, 1024) for n in range(2)}
    state = {"model": weights}
    source = save_with_torch(state, tmp_path / "source")
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-m", "tests.checkpoint.memory_points", str(tmp_path / "work"), str(source)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, json.dumps(WAYS[way])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == [], done.stderr[-2000:]
    assert found["refused"] >= 5
    assert found["done"] == 3


ERRORS = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("can't start new thread"),
    OSError(12, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_no_memory_is_an_error_of_ours_in_the_library_too(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.checkpoint_convert import convert_checkpoint

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ItemWriter, "write", fail)
    with pytest.raises(CheckpointMemoryError, match="not enough memory to convert"):
        convert_checkpoint(PLAIN, tmp_path / "out", world_size=3)
    assert_nothing_left(tmp_path)


def test_no_stack_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    manifest = inspect_checkpoint(PLAIN)
    monkeypatch.setattr("fsdp_migrate.checkpoint_convert.planning.plan.plan_renames", fail)
    with pytest.raises(CheckpointFormatError, match="nested too deeply to plan"):
        plan_conversion(manifest)
