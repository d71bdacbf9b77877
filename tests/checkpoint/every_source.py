"""One small checkpoint of every kind that docs/checkpoints.md lists, all made of genuine FSDP1 ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fsdp_migrate.checkpoint_convert import SourceOptions, convert_checkpoint
from tests.checkpoint import stack_folders
from tests.checkpoint.rank_sources import RankSources, flat_options
from tests.checkpoint.samples import COMPOSER, LIGHTNING, NEWEST, PLAIN, load_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SINGLE = (
    "torch",
    "torch 2.15",
    "flattened optimizer",
    "file of torch.save",
    "bare state dict",
    "Composer",
    "Composer file",
    "Accelerate",
    "Lightning",
    "Lightning `.ckpt`",
    "safetensors",
)
# What other stacks leave in a folder, and the kind of run whose model and arguments its flat parameters need.
FOLDERS: dict[str, tuple[Callable[[RankSources, Path], None], str | None]] = {
    "Accelerate, full": (stack_folders.accelerate_full, None),
    "Accelerate, `use_dcp=False`": (stack_folders.accelerate_without_dcp, None),
    "HF Trainer": (stack_folders.hf_trainer, None),
    "HF Trainer, full": (stack_folders.hf_trainer_full, None),
    "HF Trainer, pieces": (stack_folders.hf_trainer_pieces, None),
    "Composer, file per rank": (stack_folders.composer_ranks, None),
    "Composer's `save.py`": (stack_folders.composer_parts, None),
    "file per rank": (stack_folders.rank_files, None),
    "file per rank, flat": (stack_folders.local_files, "flat"),
    "verl": (stack_folders.verl, "mesh"),
    "OLMo": (stack_folders.olmo_new, None),
    "OLMo, full": (stack_folders.olmo_full, None),
    "OLMo, `torch_legacy`": (stack_folders.olmo_legacy, None),
    "OLMo, local": (stack_folders.olmo_local, None),
    "mmengine": (stack_folders.mmengine, None),
    "mmengine, local": (stack_folders.mmengine_local, "flat"),
    "torchtune": (stack_folders.torchtune, None),
    "llama-cookbook": (stack_folders.cookbook, None),
    "LLaMA2-Accessory": (stack_folders.accessory, None),
    "direct-preference-optimization": (stack_folders.dpo, None),
    "fms-fsdp": (stack_folders.fms_fsdp, None),
    "lingua": (stack_folders.lingua, None),
    "litgpt": (stack_folders.litgpt, None),
}
SOURCES = (*SINGLE, *FOLDERS)


def make_sources(rank_sources: RankSources, folder: Path) -> dict[str, tuple[Path, SourceOptions]]:
    """Make one checkpoint of each kind, and say how it is read."""
    found = {"torch": PLAIN, "torch 2.15": NEWEST, "Composer": COMPOSER}
    found |= {"Lightning": LIGHTNING / "sharded.ckpt", "Lightning `.ckpt`": LIGHTNING / "full.ckpt"}
    for name, to in (
        ("flattened optimizer", "torchtitan"),
        ("Accelerate", "accelerate"),
        ("safetensors", "hf"),
    ):
        found[name] = folder / to
        convert_checkpoint(PLAIN, found[name], to=to)
    state = load_with_torch(PLAIN)
    torch.save(state, folder / "state.pt")
    torch.save(load_with_torch(COMPOSER), folder / "ep0-ba2-rank0.pt")
    found["file of torch.save"] = folder / "state.pt"
    found["Composer file"] = folder / "ep0-ba2-rank0.pt"
    torch.save(state["model"], folder / "pytorch_model.bin")
    found["bare state dict"] = folder / "pytorch_model.bin"
    for number, (name, (make, _)) in enumerate(FOLDERS.items()):
        found[name] = folder / f"folder{number}"
        found[name].mkdir()
        make(rank_sources, found[name])
    assert found.keys() == set(SOURCES)
    kinds = {name: kind for name, (_, kind) in FOLDERS.items() if kind}
    return {
        name: (path, flat_options(kinds[name]) if name in kinds else SourceOptions())
        for name, path in found.items()
    }
