"""Folders as frameworks leave them on disk, made of what real FSDP1 ranks saved."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tests.checkpoint.samples import save_with_torch
from tests.rank_bodies.sources import RankNet


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.checkpoint.rank_sources import Flat, RankSources


def whole_states(wanted: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return full state dicts, as FULL_STATE_DICT gives them, from everything by name."""
    model = {n.removeprefix("model."): value for n, value in wanted.items() if n.startswith("model.")}
    state: dict[str, dict[str, Any]] = {}
    for name, value in wanted.items():
        if name.startswith("optimizer."):
            parameter, _, moment = name.removeprefix("optimizer.").rpartition(".")
            state.setdefault(parameter, {})[moment] = value
    names = [name for name, _ in RankNet().named_parameters()]
    group = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False}
    group.update(maximize=False, foreach=None, capturable=False, differentiable=False, fused=None)
    group.update(decoupled_weight_decay=True, params=names)
    return model, {"state": state, "param_groups": [group]}


def hf_trainer(sources: RankSources, folder: Path) -> None:
    """``checkpoint-N/`` of the HF Trainer with sharded states."""
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(sources.folder / "plain" / name, folder / name)
    torch.save({"last_epoch": 2}, folder / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state_0.pth")
    (folder / "trainer_state.json").write_text('{"global_step": 2}')


def accelerate_full(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    torch.save(model, folder / "pytorch_model_fsdp.bin")
    torch.save(optimizer, folder / "optimizer.bin")
    torch.save({"last_epoch": 2}, folder / "scheduler.bin")


def hf_trainer_full(sources: RankSources, folder: Path) -> None:
    """FULL states of the HF Trainer, which also saves the weights as for inference."""
    accelerate_full(sources, folder)
    model, _ = whole_states(sources.expected["plain"])
    save_file({name: value.clone() for name, value in model.items()}, folder / "model.safetensors")


def hf_trainer_pieces(sources: RankSources, folder: Path) -> None:
    """Weights in numbered pieces with an index, and the optimizer beside them."""
    model, optimizer = whole_states(sources.expected["plain"])
    names, weights = list(model), {}
    for number in range(2):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: model[name].clone() for name in names[number::2]}, folder / file)
        weights.update(dict.fromkeys(names[number::2], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    torch.save(optimizer, folder / "optimizer.pt")


def accelerate_without_dcp(sources: RankSources, folder: Path) -> None:
    """``use_dcp=False``: sharded states, one file per rank."""
    for rank in range(2):
        state = sources.folder / "plain" / f"model_rank{rank}.pt"
        shutil.copy(state, folder / f"pytorch_model_fsdp_0_rank{rank}.bin")
    shutil.copytree(sources.folder / "plain" / "optimizer_0", folder / "optimizer_0")


def olmo_new(sources: RankSources, folder: Path) -> None:
    shutil.copytree(sources.folder / "plain" / "model_and_optim", folder / "model_and_optim")
    (folder / "train").mkdir()
    for rank in range(2):
        torch.save({"epoch": 3, "rng": {"seed": rank}}, folder / "train" / f"rank{rank}.pt")


def olmo_full(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    torch.save(model, folder / "model.pt")
    torch.save(optimizer, folder / "optim.pt")
    torch.save({"epoch": 3}, folder / "train.pt")


def composer_parts(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    for name, value in (("model", model), ("optim", optimizer)):
        (folder / name).mkdir()
        torch.save(value, folder / name / f"{name}.pt")
    (folder / "composer_metadata.json").write_text("{}")


def dpo(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    for name, value in (("policy", model), ("optimizer", optimizer), ("scheduler", {"last_epoch": 2})):
        torch.save({"step_idx": 2, "state": value, "metrics": {"loss": 1.0}}, folder / f"{name}.pt")


def accessory(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    torch.save({"model": model}, folder / "consolidated.00-of-01.model.pth")
    torch.save({"optimizer": optimizer}, folder / "consolidated.00-of-01.optimizer.pth")
    torch.save({"epoch": 1}, folder / "consolidated.00-of-01.other.pth")


def cookbook(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    torch.save(model, folder / "llama--7B-0.pt")
    torch.save(optimizer, folder / "optimizer-llama--7B-0.pt")


def torchtune(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    names = list(model)
    for number in range(2):
        piece = {name: model[name].clone() for name in names[number::2]}
        save_file(piece, folder / f"model-0000{number + 1}-of-00002.safetensors")
    (folder / "recipe_state").mkdir()
    torch.save({"optimizer": optimizer, "epochs_run": 1}, folder / "recipe_state" / "recipe_state.pt")


FOLDERS: dict[Callable[[RankSources, Path], None], tuple[str, str]] = {
    hf_trainer: ("accelerate", "accelerate"),
    hf_trainer_full: ("accelerate", "accelerate"),
    hf_trainer_pieces: ("accelerate", "accelerate"),
    accelerate_full: ("accelerate", "accelerate"),
    accelerate_without_dcp: ("accelerate", "accelerate"),
    olmo_new: ("olmo", "torch"),
    olmo_full: ("olmo", "torch"),
    composer_parts: ("composer-parts", "composer"),
    dpo: ("dpo", "torch"),
    accessory: ("llama2-accessory", "torch"),
    cookbook: ("llama-cookbook", "torch"),
    torchtune: ("torchtune", "torch"),
}


def rank_files(sources: RankSources, folder: Path) -> None:
    """Sharded tensors, pickled by each rank."""
    sources.copy("plain", "sharded", folder)


def local_files(sources: RankSources, folder: Path) -> None:
    """``LOCAL_STATE_DICT`` and a plain optimizer, as Accelerate LOCAL and dinov2 leave them."""
    sources.copy("flat", "local", folder, name="pytorch_model_fsdp_rank*.bin")
    sources.copy("flat", "optim", folder, name="optimizer_0_rank*.bin")


def verl(sources: RankSources, folder: Path) -> None:
    """The model in DTensors, the optimizer as it is on each rank."""
    sources.copy("mesh", "model", folder, name="model_world_size_2_rank_*.pt")
    sources.copy("mesh", "optim", folder, name="optim_world_size_2_rank_*.pt")
    for rank in range(2):
        extra = {"lr_scheduler": {"last_epoch": 3}, "rng": {"seed": rank}}
        torch.save(extra, folder / f"extra_state_world_size_2_rank_{rank}.pt")


def olmo_local(sources: RankSources, folder: Path) -> None:
    """Flat parameters with what torch knows of them."""
    shutil.copytree(sources.folder / "plain" / "olmo", folder, dirs_exist_ok=True)


def olmo_legacy(sources: RankSources, folder: Path) -> None:
    """``torch_legacy``: pickled sharded tensors."""
    sources.copy("plain", "sharded", folder, name="rank*.pt")


def mmengine_local(sources: RankSources, folder: Path) -> None:
    """``epoch_1.pth/``: flat parameters, and the optimizer by name in sharded tensors."""
    sources.copy("flat", "mmengine", folder, name="rank*.pth")


def mmengine(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    meta = {"epoch": 1, "iter": 2, "experiment_name": "run", "seed": 3}
    schedulers = [{"last_step": 2, "base_values": [0.01]}]
    state = {"state_dict": model, "optimizer": optimizer, "param_schedulers": schedulers, "meta": meta}
    torch.save(state, folder / "epoch_1.pth")


def fms_fsdp(sources: RankSources, folder: Path) -> None:
    """``step_2_ckp/``: a distributed checkpoint with other names, and files beside it."""
    model, optimizer = whole_states(sources.expected["plain"])
    save_with_torch({"model_state": model, "optimizer_state": optimizer}, folder)
    torch.save({"step": 2, "tokens_seen": 10}, folder / "metadata.pth")


def lingua(sources: RankSources, folder: Path) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    save_with_torch({"model": model, "optim": optimizer}, folder)
    (folder / "params.json").write_text("{}")
    (folder / "train_state_00000.json").write_text('{"step": 2}')


def litgpt(sources: RankSources, folder: Path) -> None:
    model, _ = whole_states(sources.expected["plain"])
    torch.save({"model": model, "step_count": 2}, folder / "lit_model.pth")


def composer_ranks(sources: RankSources, folder: Path) -> None:
    """Composer before 0.18."""
    for rank in range(2):
        shutil.copy(sources.folder / "plain" / f"ep0-ba2-rank{rank}.pt", folder)
