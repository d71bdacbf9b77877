"""What ``microbatches`` costs: the time of a step against the same loop without it, on gloo ranks.

    torchrun --nproc-per-node 2 benchmarks/bench_microbatch.py

All take turns in one run, and the median of the ratios of each round counts. The loop without it sets
torch's own flags by hand, as ``every`` does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import microbatches, prepare_fully_shard
from fsdp_migrate.runtime import end_process_group


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Work: TypeAlias = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    width = options.width
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(options.layers)]
    model = nn.Sequential(*layers)
    prepare_fully_shard(model, {"auto_wrap_policy": {nn.Sequential}, "device_id": "cpu"})
    measure(model, list(torch.randn(4, options.rows, width)), options.rounds, options.steps)
    end_process_group()


def measure(model: nn.Module, parts: list[torch.Tensor], rounds: int, steps: int) -> None:
    by_hand, others = loops(model, parts)
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for work in (by_hand, *others.values()):
        timed(model, work, 1)
    for _ in range(rounds):
        for name, work in others.items():
            base = timed(model, by_hand, steps)
            ratios[name].append(timed(model, work, steps) / base)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {dist.get_world_size()} gloo ranks, {len(parts)} microbatches")
        for name, found in ratios.items():
            print(f"{name}: {statistics.median(found):.2f} of the time by hand")


def loops(model: Any, parts: list[torch.Tensor]) -> tuple[Work, dict[str, Work]]:
    def by_hand() -> None:
        for index, part in enumerate(parts):
            model.set_requires_all_reduce(index + 1 == len(parts))
            model(part).square().mean().backward()

    def loop(number: int = len(parts), **settings: Any) -> Work:
        def run() -> None:
            for part in microbatches(model, parts[:number], **settings):
                model(part).square().mean().backward()

        return run

    return by_hand, {
        "microbatches": loop(),
        "microbatches, agree=True": loop(agree=True),
        "microbatches, comms='last'": loop(comms="last"),
        # The odd ranks have one less, and join in the last.
        "microbatches, one missing": loop(len(parts) - dist.get_rank() % 2),
    }


def timed(model: nn.Module, work: Work, steps: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        work()
        model.zero_grad()
    dist.barrier()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
