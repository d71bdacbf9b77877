"""Runs the scripts that users run: under torchrun, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

from tests.ranks import ROOT


def run_python(*arguments: object) -> str:
    """Return what ``python ARGUMENTS`` writes to stdout; it must end well."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=110
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def run_script(script: object, *arguments: object, num_ranks: int = 2) -> str:
    """Return what ``torchrun --nproc-per-node NUM_RANKS SCRIPT ARGUMENTS`` writes to stdout."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks]
    return run_python(*launcher, ROOT / "tests" / "leave_at_once.py", ROOT / str(script), *arguments)
