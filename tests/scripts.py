"""Runs the scripts that users run."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from tests.rank_bodies import scripts
from tests.ranks import ROOT, run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def run_python(*arguments: object, cwd: Path | None = None) -> str:
    """Return what ``python ARGUMENTS`` writes to stdout; it must end well."""
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=cwd)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def run_torchrun(script: object, *arguments: object, num_ranks: int = 2) -> str:
    """Return what ``torchrun --nproc-per-node NUM_RANKS SCRIPT ARGUMENTS`` writes to stdout."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks]
    return run_python(*launcher, ROOT / "tests" / "leave_at_once.py", ROOT / str(script), *arguments)


def run_script(script: object, *arguments: object, num_ranks: int = 2) -> str:
    """Return what a script writes to stdout, the ranks' one after the other.

    What torchrun does, in processes that have torch loaded: each saves the seconds that this takes.
    """
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    words = [str(ROOT / str(script)), *map(str, arguments)]
    out = run_ranks(scripts.run, *words, world_size=num_ranks, timeout=110, master_port=store.port)
    return "".join(out)
