"""Runs the scripts that users run: under torchrun, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


def run_python(*arguments: object, cwd: Path | None = None) -> str:
    """Return what ``python ARGUMENTS`` writes to stdout; it must end well."""
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=cwd)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def run_script(script: object, *arguments: object, num_ranks: int = 2) -> str:
    """Return what ``torchrun --nproc-per-node NUM_RANKS SCRIPT ARGUMENTS`` writes to stdout."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks]
    return run_python(*launcher, ROOT / "tests" / "leave_at_once.py", ROOT / str(script), *arguments)
