"""Makes a group, gathers, and ends it, again and again; torch's own end hangs in some ten rounds (2.7).

python tests/rank_scripts/ending_groups.py ROUNDS [BUSY PROCESSES BESIDE IT]
torchrun --nproc-per-node 2 tests/rank_scripts/ending_groups.py ROUNDS
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fsdp_migrate.runtime import end_process_group


def make_group(number: int) -> None:
    if "RANK" in os.environ:
        store = dist.PrefixStore(str(number), _STORE)
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def gather() -> None:
    """Gather without keeping a tensor: one of gloo's threads is the last that has it."""
    for _ in range(3):
        out = [torch.empty(4) for _ in range(dist.get_world_size())]
        dist.all_gather(out, torch.ones(4))


def main(rounds: int, busy: int = 0) -> None:
    load = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(busy)]
    try:
        before, start = len(list(Path("/proc/self/fd").iterdir())), time.monotonic()
        for number in range(rounds):
            make_group(number)
            for _ in range(3):  # as meshes make them
                dist.new_group()
            gather()
            end_process_group()
        left = len(list(Path("/proc/self/fd").iterdir())) - before
        seconds = time.monotonic() - start
        sys.stdout.write(
            f"{rounds} rounds on torch {torch.__version__}: {seconds:.1f} s, {left} files left\n"
        )
    finally:
        for process in load:
            process.kill()
            process.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        _STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    main(*map(int, sys.argv[1:]))
