"""Small sources of several layouts, made in this process, for the tests of what may go wrong around them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tests.checkpoint.samples import PLAIN, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


def states(seed: int = 7) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return full states of a model and its AdamW, by name."""
    generator = torch.Generator().manual_seed(seed)
    model = {
        "up.weight": torch.randn(7, 6, generator=generator),
        "up.bias": torch.randn(7, generator=generator),
        "down.weight": torch.randn(5, 7, generator=generator),
    }
    state = {
        name: {
            "step": torch.tensor(2.0),
            "exp_avg": torch.randn(value.shape, generator=generator),
            "exp_avg_sq": torch.rand(value.shape, generator=generator),
        }
        for name, value in model.items()
    }
    group = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "params": list(model)}
    return model, {"state": state, "param_groups": [group]}


def one_file(folder: Path, seed: int = 7) -> Path:
    model, optimizer = states(seed)
    source = folder / "source.pt"
    torch.save({"model": model, "optimizer": optimizer, "step": 2}, source)
    return source


def accelerate(folder: Path, seed: int = 7) -> Path:
    """What ``accelerator.save_state`` leaves of a run with SHARDED_STATE_DICT."""
    model, optimizer = states(seed)
    source = folder / "source"
    save_with_torch({"model": model}, source / "pytorch_model_fsdp_0")
    save_with_torch({"optimizer": optimizer}, source / "optimizer_0")
    torch.save({"last_epoch": 2, "_step_count": 3}, source / "scheduler.bin")
    torch.save({"scale": 65536.0, "_growth_tracker": 2}, source / "scaler.pt")
    torch.save({"torch_manual_seed": torch.get_rng_state()[:64]}, source / "random_states_0.pkl")
    return source


def pieces(folder: Path, seed: int = 7) -> Path:
    """Weights in two numbered files."""
    model, _ = states(seed)
    source = folder / "source"
    source.mkdir()
    for number in range(2):
        names = list(model)[number::2]
        name = f"pytorch_model-0000{number + 1}-of-00002.bin"
        torch.save({name: model[name] for name in names}, source / name)
    return source


def safetensors(folder: Path) -> Path:
    model, _ = states()
    source = folder / "source"
    source.mkdir()
    save_file(model, source / "model.safetensors")
    return source


def distributed(folder: Path, seed: int = 7) -> Path:
    """A genuine one; it is the same whatever the seed, but newer."""
    del seed
    return shutil.copytree(PLAIN, folder / "source")
