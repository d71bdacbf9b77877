"""The converter against torch's and Accelerate's own ways and against a plain copy.

    python benchmarks/bench_convert.py --size 4G

Sources are written by real FullyShardedDataParallel on 2 gloo ranks, SHARDED_STATE_DICT, with
torch.distributed.checkpoint. Every measurement is a process of its own, its start and imports included, over
sources that are in the page cache. What the converter writes is on the disk when it ends, and so is what
torch's FileSystemWriter and ``cp`` with ``sync`` write; what ``torch.save`` and Accelerate write need not be.
The sides of a ratio take turns and the medians count. Exit code 1 where a ratio is out of bounds, from 4 GB
on: with less, what starting Python and importing torch take counts for more than the work.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.processes import MIB, Figure, Job, Run, memory_ratio, take_turns, time_ratio
from benchmarks.scripts import (
    BOTH_WAYS,
    CAST_ON_ONE_CORE,
    COPY,
    MANY_CHUNKS,
    MERGE,
    TO_DCP,
    TO_TORCH_SAVE,
    save_under_fsdp1,
    torchrun,
    warm,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNITS = {"M": 1 << 20, "G": 1 << 30}
JUDGED_FROM = 4 << 30
PYTHON = [sys.executable, "-c"]
CONVERT = [sys.executable, "-m", "fsdp_migrate", "convert", "--json"]
MANY = 1_000_000
# 512 MiB and the buffer, whatever the size.
PRIVATE = (512 + 64) * MIB


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
        self._ours = folder / "ours"
        self._theirs = folder / "theirs"
        self._others = folder / "others"
        self._weights = folder / "accelerate" / "pytorch_model_fsdp_0"
        self._full = folder / "full.pt"

    def rewrite(self) -> list[Figure]:
        """Divide a training checkpoint anew, 2 -> 8, and give one new metadata only."""
        source = self._folder / "fsdp1"
        self._save(source, has_optimizer=True)
        both_ways = self._job([*PYTHON, BOTH_WAYS], source, self._theirs)
        found = take_turns(
            {
                "rewrite 2 -> 8": self._job([*CONVERT, "--world-size", "8"], source, self._ours),
                "cp -r + sync": self._job(["sh", "-c", COPY], source, self._others),
                "relink": self._job(CONVERT, source, self._ours),
                "dcp_to_torch_save + torch_save_to_dcp": replace(
                    both_ways, writes=[self._theirs, self._folder / "theirs.pt"]
                ),
            },
            self._runs,
        )
        ours, copy, relink, torch = found.values()
        return [
            time_ratio("rewrite 2 -> 8 / cp -r + sync", ours, copy, 1.5),
            time_ratio("rewrite 2 -> 8 / torch's route", ours, torch, 1 / 3),
            memory_ratio("rewrite 2 -> 8 / torch's route", ours, torch, 1 / 5),
            time_ratio("relink / torch's route", relink, torch, 1 / 8),
            _private("rewrite 2 -> 8", ours),
        ]

    def safetensors(self) -> list[Figure]:
        """Make safetensors of the weights, and leave a full state dict of them behind."""
        self._make_weights()
        found = take_turns(
            {
                "DCP -> safetensors": self._job([*CONVERT, "--to", "hf"], self._weights, self._ours),
                "dcp_to_torch_save": self._job(
                    [*PYTHON, TO_TORCH_SAVE], self._weights, self._full, keeps=True
                ),
                "Accelerate's merge_fsdp_weights": self._job([*PYTHON, MERGE], self._weights, self._theirs),
            },
            self._runs,
        )
        ours, torch, accelerate = found.values()
        return [
            time_ratio("DCP -> safetensors / dcp_to_torch_save", ours, torch, 1.0),
            memory_ratio("DCP -> safetensors / dcp_to_torch_save", ours, torch, 1 / 4),
            time_ratio("DCP -> safetensors / merge_fsdp_weights", ours, accelerate, 1.0),
            memory_ratio("DCP -> safetensors / merge_fsdp_weights", ours, accelerate, 1 / 4),
            _private("DCP -> safetensors", ours),
        ]

    def full(self) -> list[Figure]:
        """Divide a full state dict over 8 ranks."""
        if not self._full.exists():
            self._make_weights()
            job = self._job([*PYTHON, TO_TORCH_SAVE], self._weights, self._full, keeps=True)
            take_turns({"making the full state dict": job}, 1)
        warm(self._full)
        found = take_turns(
            {
                "full .pt -> DCP for 8": self._job([*CONVERT, "--world-size", "8"], self._full, self._ours),
                "torch_save_to_dcp": self._job([*PYTHON, TO_DCP], self._full, self._theirs),
            },
            self._runs,
        )
        ours, torch = found.values()
        return [
            time_ratio("full .pt -> DCP for 8 / torch_save_to_dcp", ours, torch, 1.0),
            memory_ratio("full .pt -> DCP for 8 / torch_save_to_dcp", ours, torch, 1 / 4),
            _private("full .pt -> DCP for 8", ours),
        ]

    def ranks(self) -> list[Figure]:
        """Cast on one core against two processes on a core each, and as they are started by default.

        A cast alone waits for the disk about as long as it computes; with checksums the cores count.
        """
        self._make_weights()
        script = self._folder / "cast.py"
        script.write_text(CAST_ON_ONE_CORE, encoding="utf-8")
        whole = ["-m", "fsdp_migrate", "convert", "--json", "--dtype", "bf16"]
        commands = {
            "cast and checksums, 1 process on 1 core": [*torchrun(1), str(script), "checksums"],
            "cast and checksums, 2 processes on a core each": [*torchrun(2), str(script), "checksums"],
            "cast, 1 process on 1 core": [*torchrun(1), str(script), ""],
            "cast, 2 processes on a core each": [*torchrun(2), str(script), ""],
            "cast, 1 process, all cores": [sys.executable, *whole],
            "cast, 2 processes, all cores": [*torchrun(2), *whole],
        }
        jobs = {name: self._job(command, self._weights, self._ours) for name, command in commands.items()}
        summed, summed2, one, two, default, default2 = take_turns(jobs, self._runs).values()
        ratio = "cast and checksums, 1 process / 2, a core each"
        return [
            Figure(ratio, *_told(summed, summed2), "s", 1.6, is_least=True),
            Figure("cast alone, 1 process / 2, a core each", *_told(one, two), "s"),
            Figure("cast alone, the same, with imports", one.seconds, two.seconds, "s"),
            Figure(
                "cast alone, 1 process / 2, all cores, with imports", default.seconds, default2.seconds, "s"
            ),
            _private("cast", default),
        ]

    def metadata(self) -> list[Figure]:
        """Inspect and relink a checkpoint of very many chunks, and one of a quarter as many."""
        counts = {"all": MANY, "quarter": MANY // 4}
        jobs = {}
        for name, count in counts.items():
            source = self._folder / f"chunks-{name}"
            make = Job([*PYTHON, MANY_CHUNKS, str(source), str(count)], [source], keeps=True)
            take_turns({f"making {count} chunks": make}, 1)
            jobs[f"inspect and relink {count} chunks"] = self._job(CONVERT, source, self._ours)
        every, quarter = take_turns(jobs, self._runs).values()
        return [
            Figure(f"{MANY} chunks: inspected and relinked within 60 s", every.seconds, 60, "s", 1.0),
            Figure(f"{MANY} chunks: within 4 GB", every.resident / 1e9, 4, "GB", 1.0),
            Figure("the same / a quarter as many, processor", every.processor, quarter.processor, "s", 4.8),
        ]

    def _save(self, folder: Path, *, has_optimizer: bool) -> None:
        print("Saving under FSDP1 on 2 ranks ...", file=sys.stderr)
        save_under_fsdp1(folder, self._size, has_optimizer=has_optimizer)
        print(f"{folder.name}: {warm(folder) / 1e9:.2f} GB, written by FSDP1 on 2 gloo ranks")

    def _make_weights(self) -> None:
        if not self._weights.exists():
            self._save(self._weights, has_optimizer=False)

    def _job(self, command: Sequence[str], source: Path, output: Path, *, keeps: bool = False) -> Job:
        return Job([*command, str(source), str(output)], [output], keeps)


def _private(what: str, run: Run) -> Figure:
    return Figure(f"{what}: private memory / the bound of it", run.private / MIB, PRIVATE / MIB, "MiB", 1.0)


def _told(one: Run, other: Run) -> tuple[float, float]:
    assert one.told is not None
    assert other.told is not None
    return one.told, other.told


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _parse(argv)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as name:
        bench = Bench(Path(name), options.size, options.runs)
        for part in options.only or PARTS:
            figures += PARTS[part](bench)
    if options.size < JUDGED_FROM:
        figures = [replace(figure, bound=None) for figure in figures]
    for figure in figures:
        print(figure.line())
    if options.json:
        print(json.dumps({"size": options.size, "figures": [figure.as_dict() for figure in figures]}))
    return 0 if all(figure.is_within for figure in figures) else 1


# In this order the second leaves what the third needs.
PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "rewrite": Bench.rewrite,
    "safetensors": Bench.safetensors,
    "full": Bench.full,
    "ranks": Bench.ranks,
    "metadata": Bench.metadata,
}


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=_size, default=_size("4G"), help="of the checkpoints: 512M, 4G")
    parser.add_argument("--runs", type=int, default=3, help="of each side; the median counts")
    parser.add_argument("--dir", help="where to work; about six times the size must be free")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="only these comparisons")
    parser.add_argument("--json", action="store_true", help="also print the figures as JSON")
    return parser.parse_args(argv)


def _size(text: str) -> int:
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text.rstrip("MGmg")) * unit)


if __name__ == "__main__":
    sys.exit(main())
