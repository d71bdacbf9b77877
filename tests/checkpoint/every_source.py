"""One small checkpoint of every kind that docs/checkpoints.md lists, all made of genuine FSDP1 ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fsdp_migrate.checkpoint_convert import SourceOptions, convert_checkpoint
from tests.checkpoint import framework_folders
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
# What other frameworks leave in a folder, and the run whose model and arguments its flat parameters need.
FOLDERS: dict[str, tuple[Callable[[RankSources, Path], None], str | None]] = {
    "Accelerate, full": (framework_folders.accelerate_full, None),
    "Accelerate, `use_dcp=False`": (framework_folders.accelerate_without_dcp, None),
    "HF Trainer": (framework_folders.hf_trainer, None),
    "HF Trainer, full": (framework_folders.hf_trainer_full, None),
    "HF Trainer, pieces": (framework_folders.hf_trainer_pieces, None),
    "Composer, file per rank": (framework_folders.composer_ranks, None),
    "Composer's `save.py`": (framework_folders.composer_parts, None),
    "file per rank": (framework_folders.rank_files, None),
    "file per rank, flat": (framework_folders.local_files, "flat"),
    "verl": (framework_folders.verl, "mesh"),
    "OLMo": (framework_folders.olmo_new, None),
    "OLMo, full": (framework_folders.olmo_full, None),
    "OLMo, `torch_legacy`": (framework_folders.olmo_legacy, None),
    "OLMo, local": (framework_folders.olmo_local, None),
    "mmengine": (framework_folders.mmengine, None),
    "mmengine, local": (framework_folders.mmengine_local, "flat"),
    "torchtune": (framework_folders.torchtune, None),
    "llama-cookbook": (framework_folders.cookbook, None),
    "LLaMA2-Accessory": (framework_folders.accessory, None),
    "direct-preference-optimization": (framework_folders.dpo, None),
    "fms-fsdp": (framework_folders.fms_fsdp, None),
    "lingua": (framework_folders.lingua, None),
    "litgpt": (framework_folders.litgpt, None),
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
