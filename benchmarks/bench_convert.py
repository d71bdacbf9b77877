"""The converter against torch's own route and against a plain copy, on a checkpoint that FSDP1 wrote.

    python benchmarks/bench_convert.py --size 4G

The checkpoint is written by real FullyShardedDataParallel: linear layers and AdamW on 2 gloo ranks, one step,
SHARDED_STATE_DICT, torch.distributed.checkpoint. Every measurement is a process of its own, imports
included, over files that are in the page cache. Both sides of a ratio take turns and the median counts. Exit
code 1 where a ratio is out of bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path


UNITS = {"M": 1 << 20, "G": 1 << 30}
WIDTH = 4096
MIB = 1 << 20

SAVE = """
import os, sys, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

torch.set_num_threads(1)
dist.init_process_group("gloo")
layers, width = int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
             device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(2, width)).square().mean().backward()
optimizer.step()
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
dcp.save(state, checkpoint_id=sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""

RELINK = "import sys; from fsdp_migrate.checkpoint_convert import convert_checkpoint as c; c(*sys.argv[1:3])"
REWRITE = (
    "import sys; from fsdp_migrate.checkpoint_convert import convert_checkpoint as c; "
    "c(*sys.argv[1:3], world_size=4)"
)
TORCH = """
import sys, warnings
warnings.filterwarnings("ignore")
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
torch_save_to_dcp(sys.argv[2] + ".pt", sys.argv[2])
"""
COPY = 'cp -r "$0" "$1" && find "$1" -type f -exec sync {} +'


@dataclass(frozen=True)
class Run:
    """What one process took: seconds, the most it had resident, and the most of that which was its own."""

    seconds: float
    resident: int
    private: int


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as name:
        folder = Path(name)
        source = folder / "fsdp1"
        layers = max(round(options.size / (WIDTH * WIDTH * 4 * 3)), 2)
        print(f"Saving {layers} layers under FSDP1 on 2 ranks ...", file=sys.stderr)
        _save(source, layers)
        nbytes = sum(file.stat().st_size for file in source.iterdir())
        print(f"Source: {nbytes / 1e9:.2f} GB, written by FSDP1 on 2 gloo ranks\n")
        python = [sys.executable, "-c"]
        _warm(source)
        relink = _compare(
            options.runs,
            _job([*python, RELINK], source, folder / "ours"),
            _job([*python, TORCH], source, folder / "theirs"),
        )
        rewrite = _compare(
            options.runs,
            _job([*python, REWRITE], source, folder / "ours"),
            _job(["sh", "-c", COPY], source, folder / "theirs"),
        )
    results = [
        _judge("relink / torch's route, time", relink[0].seconds, relink[1].seconds, 1 / 8),
        _limit("relink, resident", relink[0].resident, 700 * MIB, relink[1].resident),
        _judge("rewrite 2 -> 4 / cp -r + sync, time", rewrite[0].seconds, rewrite[1].seconds, 2.5),
        _limit("rewrite, private memory", rewrite[0].private, 1024 * MIB, None),
    ]
    if options.json:
        print(json.dumps({"bytes": nbytes, "results": results}))
    return 0 if all(result["within"] for result in results) else 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=_size, default=_size("4G"), help="of the checkpoint: 512M, 4G")
    parser.add_argument("--runs", type=int, default=3, help="of each side; the median counts")
    parser.add_argument("--dir", help="where to work; twice to three times the size must be free")
    parser.add_argument("--json", action="store_true", help="also print the figures as JSON")
    return parser.parse_args(argv)


def _size(text: str) -> int:
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text.rstrip("MGmg")) * unit)


def _save(source: Path, layers: int) -> None:
    script = source.with_suffix(".py")
    script.write_text(SAVE)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(script), str(source), str(layers), str(WIDTH)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *torchrun, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"Saving under FSDP1 failed:\n{done.stderr[-4000:]}")


def _warm(source: Path) -> None:
    """Bring every file of the source into the page cache."""
    for path in source.iterdir():
        with path.open("rb") as file:
            while file.read(16 << 20):
                pass


@dataclass(frozen=True)
class Job:
    """A command, and the output that is removed after it."""

    command: list[str]
    output: Path


def _job(command: list[str], source: Path, output: Path) -> Job:
    return Job([*command, str(source), str(output)], output)


def _compare(runs: int, ours: Job, theirs: Job) -> tuple[Run, Run]:
    """Run both sides in turns; return the median time of each, and the most memory that it took."""
    measured: tuple[list[Run], list[Run]] = ([], [])
    for number in range(runs):
        for job, taken in zip((ours, theirs), measured, strict=True):
            taken.append(_measure(job))
            print(f"  run {number + 1}: {taken[-1].seconds:6.2f} s  {job.output.name}", file=sys.stderr)
    one, other = (
        Run(
            statistics.median(run.seconds for run in taken),
            max(run.resident for run in taken),
            max(run.private for run in taken),
        )
        for taken in measured
    )
    return one, other


def _measure(job: Job) -> Run:
    os.sync()
    start = time.perf_counter()
    process = subprocess.Popen(job.command)
    peaks = {"VmHWM": 0, "RssAnon": 0}
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    watcher.join()
    if code != 0:
        sys.exit(f"The command failed with exit code {code}: {job.command[:3]}")
    shutil.rmtree(job.output)
    job.output.with_name(job.output.name + ".pt").unlink(missing_ok=True)
    return Run(seconds, peaks["VmHWM"] * 1024, peaks["RssAnon"] * 1024)


def _watch(pid: int, peaks: dict[str, int]) -> None:
    """Keep the highest resident and private memory of a process until it ends."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return
        found = {line.split(":")[0]: line.split()[1] for line in lines if len(line.split()) > 1}
        if "VmHWM" not in found:
            return
        for name, peak in peaks.items():
            peaks[name] = max(peak, int(found[name]))
        time.sleep(0.02)


def _judge(what: str, ours: float, theirs: float, bound: float) -> dict[str, object]:
    ratio = ours / theirs
    within = ratio <= bound
    print(
        f"{what:38s} {ours:7.2f} s / {theirs:7.2f} s = {ratio:.3f}  "
        f"(at most {bound:.3f}: {'ok' if within else 'OUT OF BOUNDS'})"
    )
    return {"what": what, "ours": ours, "theirs": theirs, "ratio": ratio, "within": within}


def _limit(what: str, ours: int, bound: int, theirs: int | None) -> dict[str, object]:
    within = ours <= bound
    beside = f"; torch's route {theirs / MIB:.0f} MiB" if theirs else ""
    print(
        f"{what:38s} {ours / MIB:7.0f} MiB  "
        f"(at most {bound / MIB:.0f} MiB: {'ok' if within else 'OUT OF BOUNDS'}{beside})"
    )
    return {"what": what, "ours": ours, "theirs": theirs, "bound": bound, "within": within}


if __name__ == "__main__":
    sys.exit(main())
