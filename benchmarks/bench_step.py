"""A training step of a prepared model against one sharded by hand, FSDP1, and one with skipped units joined.

python benchmarks/bench_step.py [--rounds 400] [--width 256]

Two gloo ranks on the CPU. Steps of the models take turns, so that whatever else the machine does
falls on all of them; the ratio is the median of the rounds' ratios. Exits with 1 where the prepared model is
not within 3 % of the one sharded by hand.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import prepare_fully_shard
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable


BOUND = 0.03
LAYERS = 6
KINDS = ("prepared", "by hand", "FSDP1", "joining")


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


def sharded(kind: str, width: int) -> Any:
    """Return a model of that kind."""
    model = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "device_id": torch.device("cpu"),
    }
    if kind == "prepared":
        return prepare_fully_shard(model, arguments)
    if kind == "joining":
        return prepare_fully_shard(model, arguments, skipped_units="join")
    if kind == "FSDP1":
        return FSDP(model, use_orig_params=True, **arguments)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def stepper(kind: str, width: int) -> Callable[[], tuple[float, float]]:
    """Return a function that makes one training step and returns its seconds, and those of the processor."""
    torch.manual_seed(0)
    model = sharded(kind, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, width)

    def step() -> tuple[float, float]:
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        torch.autograd.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - start, time.process_time() - used

    return step


def measure(rounds: int, width: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Let them take turns; return the seconds of each step, and those of the processor."""
    warnings.simplefilter("ignore")
    steps = {kind: stepper(kind, width) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    processor: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(rounds + 5):
        order = KINDS if turn % 2 else tuple(reversed(KINDS))
        for kind in order:
            spent, used = steps[kind]()
            if turn >= 5:
                seconds[kind].append(spent)
                processor[kind].append(used)
    return seconds, processor


def peak(kind: str, width: int) -> int:
    """Train three steps of one kind alone; return the largest resident size, in bytes."""
    warnings.simplefilter("ignore")
    step = stepper(kind, width)
    for _ in range(3):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def paired_ratio(seconds: dict[str, list[float]], other: str) -> float:
    """Return the median over rounds of the prepared model's time by another's."""
    return statistics.median(a / b for a, b in zip(seconds[KINDS[0]], seconds[other], strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    seconds, processor = run_ranks(measure, options.rounds, options.width, timeout=500)[0]
    medians = {kind: statistics.median(spent) for kind, spent in seconds.items()}
    peaks = {kind: run_ranks(peak, kind, options.width, timeout=200)[0] for kind in KINDS}
    for kind in KINDS:
        print(
            f"{kind:10} {1e3 * medians[kind]:8.2f} ms a step, {peaks[kind] / 2**20:6.0f} MiB resident at most"
        )
    by_hand, fsdp1, joining = (paired_ratio(seconds, kind) for kind in KINDS[1:])
    print(f"prepared / by hand: {by_hand:.3f} of its time (bound: 1.00 +- {BOUND})")
    print(
        f"prepared / FSDP1:   {fsdp1:.3f} of its time, {peaks['prepared'] / peaks['FSDP1']:.3f} of its memory"
    )
    joined = 1 / paired_ratio(processor, "joining")
    print(f"joining / prepared: {1 / joining:.3f} of its time, {joined:.3f} of the processor's; none skips")
    return int(abs(by_hand - 1) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
