"""A training step on one GPU, prepared, sharded by hand and under FSDP1: its time, and its peak of memory.

python benchmarks/bench_gpu.py [--rounds 60] [--case bf16]

The GPU is rank 0 of 8 whose network takes no time: torch's fake process group does nothing. What is
measured is what each way of sharding costs itself, in Python and in copies on the device. Steps take turns; a
ratio is the median of the rounds' ratios. Each peak is of a model that is alone, from its sharding on. Exits
with 1 where the prepared model takes 5 % more time, or 2 % more memory, than the one sharded by hand.
``--device cpu`` is for working on this file.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.bench_step import Block
from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import clip_grad_norm_, no_sync


if TYPE_CHECKING:
    from collections.abc import Callable


KINDS = ("prepared", "by hand", "FSDP1")
TIME_BOUND, MEMORY_BOUND = 0.05, 0.02
NUM_RANKS = 8


@dataclass(frozen=True)
class Case:
    """A model of residual blocks, and how it is trained; ``rows`` are of one microbatch."""

    layers: int
    width: int
    rows: int
    is_low: bool = True
    microbatches: int = 1
    is_offloaded: bool = False


CASES = {
    "fp32, small units": Case(layers=48, width=256, rows=64, is_low=False),
    "bf16": Case(layers=12, width=2048, rows=8192),
    "bf16, 4 microbatches": Case(layers=12, width=2048, rows=2048, microbatches=4),
    "bf16, offloaded": Case(layers=6, width=1024, rows=4096, is_offloaded=True),
}


def sharded(kind: str, case: Case, device: torch.device) -> Any:
    """Return a model of that kind."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(case.width) for _ in range(case.layers)))
    arguments: dict[str, Any] = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": device}
    if case.is_low:
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    if case.is_offloaded:
        arguments["cpu_offload"] = CPUOffload(offload_params=True)
    if kind == "prepared":
        return prepare_fully_shard(model, arguments)
    if kind == "FSDP1":
        return FSDP(model, use_orig_params=True, **arguments)
    options: dict[str, Any] = {"mesh": init_device_mesh(device.type, (NUM_RANKS,))}
    if case.is_low:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if case.is_offloaded:
        options["offload_policy"] = CPUOffloadPolicy()
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def quiet(kind: str, model: Any, is_last: bool) -> Any:
    """Return the context in which gradients are kept and not reduced."""
    if kind == "by hand":
        model.set_requires_gradient_sync(is_last)
    if is_last or kind == "by hand":
        return contextlib.nullcontext()
    return no_sync(model) if kind == "prepared" else model.no_sync()


def clip(kind: str, model: Any) -> Any:
    """Clip gradients by their norm."""
    if kind == "prepared":
        return clip_grad_norm_(model, 1.0)
    return (
        model.clip_grad_norm_(1.0) if kind == "FSDP1" else nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    )


def stepper(kind: str, case: Case, device: torch.device) -> Callable[[], float]:
    """Return a function that makes one training step and returns its seconds."""
    model = sharded(kind, case, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(case.rows, case.width, device=device)

    def step() -> float:
        synchronize(device)
        start = time.perf_counter()
        for part in range(case.microbatches):
            with quiet(kind, model, part + 1 == case.microbatches):
                torch.autograd.backward(model(inputs).float().square().mean())
        clip(kind, model)
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)
        return time.perf_counter() - start

    return step


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()


def measure(case: Case, rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Let them take turns; return the seconds of each step."""
    steps = {kind: stepper(kind, case, device) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(rounds + 5):
        for kind in KINDS if turn % 2 else reversed(KINDS):
            spent = steps[kind]()
            if turn >= 5:
                seconds[kind].append(spent)
    return seconds


def peak(kind: str, case: Case, device: torch.device) -> int:
    """Train three steps of one kind alone; return the most bytes that were allocated on the device."""
    gc.collect()
    if device.type == "cpu":
        return 1
    module = torch.get_device_module(device.type)
    module.empty_cache()
    before = module.memory_allocated()
    module.reset_peak_memory_stats()
    step = stepper(kind, case, device)
    for _ in range(3):
        step()
    found: int = module.max_memory_allocated() - before
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cpu") if options.device == "cpu" else torch.device(options.device, 0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    name = "CPU" if device.type == "cpu" else torch.get_device_module(device.type).get_device_name(0)
    print(f"torch {torch.__version__}, {name}, rank 0 of {NUM_RANKS} without a network")
    peak(
        "by hand", Case(layers=2, width=64, rows=64), device
    )  # cuBLAS takes its workspaces, which are no model's
    is_within = True
    for label in options.case or CASES:
        case = CASES[label]
        peaks = {kind: peak(kind, case, device) for kind in KINDS}
        seconds = measure(case, options.rounds, device)
        print(f"{label}: {case}")
        for kind in KINDS:
            low, middle, high = statistics.quantiles(seconds[kind], n=4)
            print(
                f"  {kind:10} {1e3 * middle:8.2f} ms a step ({1e3 * low:.2f} to {1e3 * high:.2f}), "
                f"{peaks[kind] / 2**20:8.1f} MiB at most"
            )
        for other in KINDS[1:]:
            pairs = zip(seconds["prepared"], seconds[other], strict=True)
            in_time = statistics.median(a / b for a, b in pairs)
            in_memory = peaks["prepared"] / peaks[other]
            print(f"  prepared / {other}: {in_time:.3f} of its time, {in_memory:.3f} of its memory")
            if other == "by hand":
                is_within &= in_time <= 1 + TIME_BOUND and in_memory <= 1 + MEMORY_BOUND
    return int(not is_within)


if __name__ == "__main__":
    sys.exit(main())
