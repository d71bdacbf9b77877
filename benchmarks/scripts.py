"""What the other processes of the benchmark run: jobs that save, torch's and Accelerate's ways to convert."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 4096
LAYER_BYTES = 4 * WIDTH * (WIDTH + 1)

# Layers are made and divided one after the other, so that no rank ever holds the whole model.
_SAVE = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from fsdp_migrate.runtime import end_process_group

def fill(module):
    module.to_empty(device="cpu", recurse=False)
    if isinstance(module, nn.Linear):
        module.reset_parameters()

folder, layers, width, has_optimizer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
             device_id=torch.device("cpu"), param_init_fn=fill)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if has_optimizer:
    model(torch.randn(2, width)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict()}
    if has_optimizer:
        state["optimizer"] = FSDP.optim_state_dict(model, optimizer)
dcp.save(state, checkpoint_id=folder)
end_process_group()
"""

BOTH_WAYS = """
import sys, warnings
warnings.filterwarnings("ignore")
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
torch_save_to_dcp(sys.argv[2] + ".pt", sys.argv[2])
"""
TO_TORCH_SAVE = """
import sys, warnings
warnings.filterwarnings("ignore")
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(*sys.argv[1:3])
"""
TO_DCP = """
import sys, warnings
warnings.filterwarnings("ignore")
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
torch_save_to_dcp(*sys.argv[1:3])
"""
MERGE = """
import sys, warnings
warnings.filterwarnings("ignore")
from accelerate.utils import merge_fsdp_weights
merge_fsdp_weights(*sys.argv[1:3])
"""
COPY = 'cp -r "$0" "$1" && find "$1" -type f -exec sync {} +'

# Each process has one core and one thread, and prints the seconds from when all are there to the end.
CAST_ON_ONE_CORE = """
import contextlib, os, sys, time
rank = int(os.environ.get("LOCAL_RANK", 0))
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
import torch
from fsdp_migrate.checkpoint_convert import convert_checkpoint, join_ranks
torch.set_num_threads(1)
with join_ranks() if "RANK" in os.environ else contextlib.nullcontext() as ranks:
    if ranks is not None:
        ranks.gather("there", {})
        ranks.publish("go", {}) if ranks.rank == 0 else ranks.receive("go")
    start = time.perf_counter()
    convert_checkpoint(*sys.argv[2:4], dtype="bf16", checksums=bool(sys.argv[1]), ranks=ranks)
    print(time.perf_counter() - start, flush=True)
"""

# One tensor of n / 1024 rows and 1024 chunks each, as 1,024 ranks write them.
MANY_CHUNKS = """
import sys
from pathlib import Path
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, Stored, TensorEntry
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.zip_writer import tensor_archive

folder, count, ranks = Path(sys.argv[1]), int(sys.argv[2]), 1024
folder.mkdir()
archive = tensor_archive("bfloat16", (1, 1))
length = archive.length
entries = []
for number in range(count // ranks):
    stored = [Stored(f"__{rank}_0.distcp", number * length, length) for rank in range(ranks)]
    chunks = tuple(Chunk((rank, 0), (1, 1), at) for rank, at in enumerate(stored))
    key = f"layers.{number}.weight"
    entries.append(TensorEntry(f"model.{key}", ("model", key), "bfloat16", (ranks, 1), chunks))
item = archive.head + bytes(2) + archive.tail(0)
for rank in range(ranks):
    with (folder / f"__{rank}_0.distcp").open("wb") as file:
        file.write(item)
        file.truncate(length * (count // ranks))
(folder / ".metadata").write_bytes(write_metadata(entries, checkpoint_id="x"))
"""


def save_under_fsdp1(folder: Path, nbytes: int, *, has_optimizer: bool) -> None:
    """Write a distributed checkpoint of about ``nbytes`` with FullyShardedDataParallel on 2 gloo ranks."""
    layers = max(round(nbytes / LAYER_BYTES / (3 if has_optimizer else 1)), 2)
    script = folder.parent / f"{folder.name}.py"
    folder.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SAVE, encoding="utf-8")
    command = [*torchrun(2), str(script), str(folder), str(layers), str(WIDTH), str(int(has_optimizer))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"Saving under FSDP1 failed:\n{done.stderr[-4000:]}")


def torchrun(processes: int) -> list[str]:
    """Return the command that starts so many processes."""
    module = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*module, "--nproc-per-node", str(processes)]


def warm(source: Path) -> int:
    """Bring a file, or every file of a folder, into the page cache; return their bytes."""
    nbytes = 0
    for path in [source, *source.rglob("*")]:
        if path.is_file():
            with path.open("rb") as file:
                while data := file.read(16 << 20):
                    nbytes += len(data)
    return nbytes
