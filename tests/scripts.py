"""Runs the scripts that users run."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from fsdp_migrate.errors import RankError
from tests.rank_bodies import scripts
from tests.ranks import ROOT, RanksFailedError, run_ranks
from tools.run_lanes import end_with_descendants


def run_python(*arguments: object, cwd: Path | None = None) -> str:
    """Return what ``python ARGUMENTS`` writes to stdout, in one thread as ranks have it; it must end well."""
    command = [sys.executable, *map(str, arguments)]
    # The root is for scripts that take something from the tests.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment
    ) as process:
        try:
            out, said = process.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            end_with_descendants(process.pid)
            raise
    assert process.returncode == 0, said[-3000:]
    return out


def run_torchrun(script: object, *arguments: object, num_ranks: int = 2, cwd: Path | None = None) -> str:
    """Return what ``torchrun --nproc-per-node NUM_RANKS SCRIPT ARGUMENTS`` writes to stdout."""
    # By its name a machine may not find itself.
    local = ["--standalone", "--local-addr", "localhost"]
    launcher = ["-m", "torch.distributed.run", *local, "--nproc-per-node", num_ranks]
    return run_python(*launcher, ROOT / str(script), *arguments, cwd=cwd)


def run_composer(script: object, *arguments: object, num_ranks: int = 2, cwd: Path | None = None) -> str:
    """Return what rank 0 writes to stdout under ``composer -n NUM_RANKS SCRIPT ARGUMENTS``."""
    launcher = Path(sys.executable).with_name("composer")
    return run_python(launcher, "-n", num_ranks, ROOT / str(script), *arguments, cwd=cwd)


def run_script(script: object, *arguments: object, num_ranks: int = 2) -> str:
    """Return what a script writes to stdout, the ranks' one after the other.

    What torchrun does, in processes that have torch loaded: each saves the seconds that this takes.
    """
    store = _new_store()
    words = [str(ROOT / str(script)), *map(str, arguments)]
    out = run_ranks(scripts.run, *words, world_size=num_ranks, timeout=400, master_port=store.port)
    return "".join(out)


def launch_forked(module: str, arguments: list[str], *, world_size: int, logs: Path) -> None:
    """Do what ``fsdp_migrate.launch.launch_ranks`` does, in processes that have torch loaded."""
    del logs
    store = _new_store()
    try:
        run_ranks(scripts.run_main, module, *arguments, world_size=world_size, master_port=store.port)
    except RanksFailedError as error:
        raise RankError(str(error)) from error


def _new_store() -> dist.TCPStore:
    limit = timedelta(seconds=60)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
