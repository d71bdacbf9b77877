"""What the ranks of ``fsdp-migrate parity`` run, as ``python -m fsdp_migrate.parity.worker FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from fsdp_migrate.config_files import read_config_file
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.factories import load_factory, load_function
from fsdp_migrate.parity.compare import compare_runs
from fsdp_migrate.parity.start import RECIPE, REPORT, Recipe
from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.torch_compat import devices


if TYPE_CHECKING:
    from fsdp_migrate.parity.report import ParityReport


def compare(recipe: Recipe, device: str) -> ParityReport:
    """Compare what a recipe says, on a process group that is there."""
    functions: dict[str, Any] = {
        name: None if (given := getattr(recipe, name)) is None else load_function(given, name)
        for name in ("data", "loss", "optimizer")
    }
    return compare_runs(
        load_factory(recipe.model),
        None if recipe.config is None else read_config_file(recipe.config),
        batches=functions["data"],
        loss=functions["loss"],
        optimizer=functions["optimizer"],
        checkpoint=recipe.checkpoint,
        weights_only=recipe.weights_only,
        batch_size=recipe.batch_size,
        seq_length=recipe.seq_length,
        steps=recipe.steps,
        seed=recipe.seed,
        device=device,
    )


def device_for(wanted: str, ranks: int) -> str:
    """Return the type of device to train on: the accelerator, where each rank has one.

    Example:
        >>> device_for("cpu", 2)
        'cpu'
    """
    if wanted != "auto":
        return wanted
    kind = devices.accelerator_type() or "cpu"
    return kind if kind != "cpu" and devices.device_count(kind) >= ranks else "cpu"


@record
def main() -> None:
    """Compare, and leave the report of rank 0; or leave what went wrong, and exit with 1."""
    folder = Path(sys.argv[1])
    recipe = Recipe(**json.loads((folder / RECIPE).read_text()))
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    device = device_for(recipe.device, ranks)
    dist.init_process_group("gloo" if device == "cpu" else f"cpu:gloo,{device}:nccl")
    rank = dist.get_rank()
    leave = partial(Path.write_text, folder / f"error-{rank}")
    try:
        report = compare(recipe, device)
    except FSDPMigrateError as error:
        cause = error.__cause__
        more = "" if cause is None else "\n" + "".join(traceback.format_exception(cause)[-6:])
        # Told in place of the launcher's own report, which is a traceback.
        leave(f"{error}{more}".rstrip())
        raise
    if rank == 0:
        (folder / REPORT).write_text(json.dumps(report.as_dict(), allow_nan=False))
    end_process_group()


if __name__ == "__main__":
    main()
