"""Runs complete training scripts on the same ranks, one after the other.

torchrun ... tests/rank_scripts/one_after_the_other.py SCRIPT...
"""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fsdp_migrate.runtime import end_process_group


def run(scripts: list[str]) -> None:
    """Run each script as its own main module; only rank 0 says where one begins."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    leave = dist.destroy_process_group

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Do nothing: the group is made once, for all scripts."""

    replaced: Any = dist
    replaced.init_process_group = replaced.destroy_process_group = nothing
    for script in scripts:
        if dist.get_rank() == 0:
            print(f"=== {Path(script).stem}", flush=True)  # noqa: T201
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        dist.barrier()
    replaced.destroy_process_group = leave
    end_process_group()


if __name__ == "__main__":
    run(sys.argv[1:])
