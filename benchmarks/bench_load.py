"""Loading without converting, against torch's own ways.

    python benchmarks/bench_load.py --size 4G

Two gloo ranks shard a model with fully_shard and load what real FullyShardedDataParallel saved, with AdamW's
state. Both sides of a ratio do all of the work, from the call on a new model to the moment where all ranks
could go on. What is told is the slowest rank's time; starting Python and sharding is not in it. Sources are
in the page cache. The sides take turns and the medians count. Exit code 1 where a ratio is out of bounds,
from 4 GB on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_convert import JUDGED_FROM, UNITS
from benchmarks.processes import MIB, Figure, Job, Run, take_turns
from benchmarks.scripts import LAYER_BYTES, TO_TORCH_SAVE, WIDTH, save_under_fsdp1, torchrun, warm


if TYPE_CHECKING:
    from collections.abc import Sequence


# What one rank does: `how` is ours, or one of torch's ways. The last line is the slowest rank's seconds, or
# with "memory" the most bytes that a rank took from there on.
LOAD = """
import resource, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from fsdp_migrate import load_checkpoint
from fsdp_migrate.runtime import end_process_group

how, path, layers, width, told = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dist.barrier()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before, start = peak(), time.perf_counter()
if how == "ours":
    load_checkpoint(path, model, optimizer)
elif how == "dcp":
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
else:
    full = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        full = torch.load(path, weights_only=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_state_dict(model, optimizer, model_state_dict=full["model"], optim_state_dict=full["optimizer"],
                   options=options)
dist.barrier()
found = torch.tensor([time.perf_counter() - start, float(peak() - before)], dtype=torch.float64)
dist.all_reduce(found, dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(found[1 if told == "memory" else 0].item())
end_process_group()
"""


class Bench:
    """The comparisons, and the checkpoints that they share.

    Args:
        folder: Where to work.
        size: How large the checkpoints are.
        runs: How often each side is run.
    """

    def __init__(self, folder: Path, size: int, runs: int) -> None:
        self._folder = folder
        self._runs = runs
        self._layers = max(round(size / LAYER_BYTES / 3), 2)
        self._script = folder / "load.py"
        self._script.write_text(LOAD, encoding="utf-8")
        self._source = folder / "fsdp1"
        save_under_fsdp1(self._source, size, has_optimizer=True)

    def sharded(self) -> list[Figure]:
        """Load what FSDP1 wrote with torch.distributed.checkpoint."""
        return self._compare("DCP: load_checkpoint : dcp.load", self._source, "dcp", 0.6, 1.1)

    def full(self) -> list[Figure]:
        """Load a full state with its optimizer from one file."""
        full = self._folder / "full.pt"
        subprocess.run(
            [sys.executable, "-c", TO_TORCH_SAVE, str(self._source), str(full)],
            check=True,
            capture_output=True,
        )
        return self._compare(
            "full .pt: load_checkpoint : torch.load, set_state_dict", full, "full", 0.3, None
        )

    def _compare(
        self, what: str, source: Path, theirs: str, bound: float, memory: float | None
    ) -> list[Figure]:
        warm(source)
        found = []
        for told, unit, limit in (("time", "s", bound), ("memory", "MiB", memory)):
            jobs = {how: self._job(how, source, told) for how in ("ours", theirs)}
            runs = take_turns(jobs, self._runs if told == "time" else 1)
            scale = 1 if told == "time" else MIB
            own, other = (_told(runs[how]) / scale for how in ("ours", theirs))
            found.append(Figure(f"{what}, {told}", own, other, unit, limit))
        return found

    def _job(self, how: str, source: Path, told: str) -> Job:
        arguments = [how, str(source), str(self._layers), str(WIDTH), told]
        return Job([*torchrun(2), str(self._script), *arguments], [])


def _told(run: Run) -> float:
    if run.told is None:
        raise SystemExit("A rank said nothing.")
    return run.told


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=_size, default=_size("4G"), help="of the checkpoints: 512M, 4G")
    parser.add_argument("--runs", type=int, default=3, help="of each side; the median counts")
    parser.add_argument("--dir", help="where to work; about three times the size must be free")
    parser.add_argument("--json", action="store_true", help="also print the figures as JSON")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as name:
        bench = Bench(Path(name), options.size, options.runs)
        figures = [*bench.sharded(), *bench.full()]
    if options.size < JUDGED_FROM:
        figures = [replace(figure, bound=None) for figure in figures]
    for figure in figures:
        print(figure.line())
    if options.json:
        print(json.dumps({"size": options.size, "figures": [figure.as_dict() for figure in figures]}))
    return 0 if all(figure.is_within for figure in figures) else 1


def _size(text: str) -> int:
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text.rstrip("MGmg")) * unit)


if __name__ == "__main__":
    sys.exit(main())
