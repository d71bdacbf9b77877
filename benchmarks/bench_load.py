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
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_convert import JUDGED_FROM, UNITS
from benchmarks.processes import MIB, Figure, Job, take_turns
from benchmarks.scripts import LAYER_BYTES, TO_TORCH_SAVE, WIDTH, save_under_fsdp1, torchrun, warm


if TYPE_CHECKING:
    from collections.abc import Sequence


# What one rank does: `how` is ours, or one of the ways that there are. Rank 0 appends to a file: the slowest
# rank's seconds, the processor time of all ranks, and the most bytes that a rank took from the call on.
LOAD = """
import resource, sys, time, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_state_dict, set_model_state_dict, set_optimizer_state_dict, set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.runtime import end_process_group

how, path, layers, width, told = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
dist.init_process_group("gloo")

def shard(model, layers):
    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)

def by_dcp(folder):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

if how.startswith("hf"):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
else:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    shard(model, list(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dist.barrier()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before, start, busy = peak(), time.perf_counter(), time.process_time()
if how == "ours":
    load_checkpoint(path, model, optimizer)
elif how == "dcp":
    by_dcp(path)
elif how == "convert":
    if dist.get_rank() == 0:
        convert_checkpoint(path, told + ".converted", overwrite=True)
    dist.barrier()
    by_dcp(told + ".converted")
elif how == "hf ours":
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(path))
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)  # what no checkpoint holds
    load_checkpoint(path, shard(model, model.model.layers))
elif how == "hf":
    model = LlamaForCausalLM.from_pretrained(path)
    shard(model, model.model.layers)
else:
    full = {"model": {}, "optimizer": {}}
    if dist.get_rank() == 0:
        full = torch.load(path, weights_only=True)
    # In one call, set_state_dict waits for ever: ranks that give nothing take it for a call without a model.
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full["model"], options=options)
    set_optimizer_state_dict(model, optimizer, full["optimizer"], options=options)
dist.barrier()
seconds = torch.tensor([time.perf_counter() - start, float(peak() - before)], dtype=torch.float64)
busy = torch.tensor([time.process_time() - busy], dtype=torch.float64)
dist.all_reduce(seconds, dist.ReduceOp.MAX)
dist.all_reduce(busy)
if dist.get_rank() == 0:
    with open(told, "a") as file:
        print(seconds[0].item(), busy.item(), seconds[1].item(), file=file)
end_process_group()
"""

SAVE_HF = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
layers = max(int(sys.argv[2]) // (4 * 12 * 2048**2), 1)
config = LlamaConfig(hidden_size=2048, intermediate_size=5461, num_hidden_layers=layers, vocab_size=4096)
LlamaForCausalLM(config).save_pretrained(sys.argv[1], max_shard_size="200MB")
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
        self._size = size
        self._runs = runs
        self._layers = max(round(size / LAYER_BYTES / 3), 2)
        self._script = folder / "load.py"
        self._script.write_text(LOAD, encoding="utf-8")
        self._source = folder / "fsdp1"

    def sharded(self) -> list[Figure]:
        """Load what FSDP1 wrote with torch.distributed.checkpoint."""
        save_under_fsdp1(self._source, self._size, has_optimizer=True)
        took = self._take(self._source, ("ours", "dcp"))
        name = "DCP: load_checkpoint : dcp.load"
        nbytes = warm(self._source)
        return [
            *_figures(name, took["ours"], took["dcp"], 0.6),
            _memory(name, took["ours"].nbytes, took["dcp"].nbytes, 1.1),
            Figure("DCP: load_checkpoint : dd", took["ours"].seconds, self._dd(), "s"),
            Figure(
                "DCP: GB/s of load_checkpoint : dcp.load",
                _rate(nbytes, took["ours"]),
                _rate(nbytes, took["dcp"]),
                "GB/s",
            ),
        ]

    def full(self) -> list[Figure]:
        """Load a full state with its optimizer from one file."""
        full = self._folder / "full.pt"
        script = [sys.executable, "-c", TO_TORCH_SAVE, str(self._source), str(full)]
        subprocess.run(script, check=True, capture_output=True)
        shutil.rmtree(self._source)
        took = self._take(full, ("ours", "full", "convert"))
        name = "full .pt: load_checkpoint : torch.load, set_*_state_dict"
        # The moments of AdamW are two thirds of it, and two ranks share them.
        own = self._layers * LAYER_BYTES * 2 // 2
        return [
            *_figures(name, took["ours"], took["full"], 0.3),
            _memory(name, took["ours"].nbytes, took["full"].nbytes, None),
            _memory(
                "full .pt: load_checkpoint : own state + 512 MiB", took["ours"].nbytes, own + 512 * MIB, 1.0
            ),
            *_figures("full .pt: load_checkpoint : convert, dcp.load", took["ours"], took["convert"], None),
        ]

    def safetensors(self) -> list[Figure]:
        """Load the weights of a Hugging Face model from several files."""
        folder = self._folder / "hf"
        script = [sys.executable, "-c", SAVE_HF, str(folder), str(self._size // 3)]
        subprocess.run(script, check=True, capture_output=True)
        took = self._take(folder, ("hf ours", "hf"))
        name = "safetensors: load_checkpoint : from_pretrained, fully_shard"
        return [
            *_figures(name, took["hf ours"], took["hf"], None),
            _memory(name, took["hf ours"].nbytes, took["hf"].nbytes, None),
        ]

    def _take(self, source: Path, hows: Sequence[str]) -> dict[str, _Took]:
        warm(source)
        told = {how: self._folder / f"{source.name}-{how.replace(' ', '-')}.txt" for how in hows}
        size = [str(self._layers), str(WIDTH)]
        jobs = {
            how: Job(
                [*torchrun(2), str(self._script), how, str(source), *size, str(told[how])],
                [Path(f"{told[how]}.converted")],
            )
            for how in hows
        }
        take_turns(jobs, self._runs)
        return {how: _median(told[how].read_text(encoding="utf-8")) for how in hows}

    def _dd(self) -> float:
        """Return how long it takes to read the files once."""
        files = [str(path) for path in self._source.iterdir() if path.suffix == ".distcp"]
        start = time.perf_counter()
        for file in files:
            subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=4M"], check=True, capture_output=True)
        return time.perf_counter() - start


@dataclass(frozen=True)
class _Took:
    """What a way took: seconds, processor seconds of both ranks, and the most bytes of a rank."""

    seconds: float
    busy: float
    nbytes: float


def _median(text: str) -> _Took:
    rows = [[float(word) for word in line.split()] for line in text.splitlines()]
    return _Took(*(statistics.median(column) for column in zip(*rows, strict=True)))


def _figures(what: str, ours: _Took, theirs: _Took, bound: float | None) -> list[Figure]:
    return [
        Figure(f"{what}, time", ours.seconds, theirs.seconds, "s", bound),
        Figure(f"{what}, processor", ours.busy, theirs.busy, "s"),
    ]


def _memory(what: str, ours: float, theirs: float, bound: float | None) -> Figure:
    return Figure(f"{what}, memory", ours / MIB, theirs / MIB, "MiB", bound)


def _rate(nbytes: int, took: _Took) -> float:
    return nbytes / took.seconds / 1e9


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
        figures = [*bench.sharded(), *bench.full(), *bench.safetensors()]
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
