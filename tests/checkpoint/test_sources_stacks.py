"""Folders of frameworks as they leave them on disk, converted as a whole and loaded with torch."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.errors import CheckpointFormatError
from tests.checkpoint.rank_sources import Flat, RankSources, assert_loads
from tests.checkpoint.samples import load_with_torch
from tests.rank_bodies.sources import RankNet


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


STACKS: dict[Callable[[RankSources, Path], None], tuple[str, str]] = {
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


@pytest.fixture(scope="module")
def stack_folders(rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stacks")
    folders = {make.__name__: root / make.__name__ for make in STACKS}
    for make in STACKS:
        folders[make.__name__].mkdir()
        make(rank_sources, folders[make.__name__])
    return folders


@pytest.mark.parametrize("make", STACKS, ids=lambda make: make.__name__)
def test_the_stack_and_its_parts_are_recognised(
    make: Callable[[RankSources, Path], None], stack_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = stack_folders[make.__name__]
    manifest = inspect_checkpoint(source)
    assert (manifest.layout, manifest.stack) == STACKS[make]
    parts = {part.kind: part.prefix for part in manifest.parts if part.kind != "other"}
    assert parts in (
        {"model": ("model",), "optimizer": ("optimizer",)},
        {"model": ("model",), "optimizer": ("optim",)},
    )
    convert_checkpoint(source, tmp_path / "out", to="auto")
    convert_checkpoint(source, tmp_path / "weights", weights_only=True, to="torch")
    assert set(load_with_torch(tmp_path / "weights")["model"]) == set(RankNet().state_dict())


def test_torch_loads_what_stacks_saved(
    rank_sources: RankSources, stack_folders: dict[str, Path], tmp_path: Path
) -> None:
    wanted = rank_sources.expected["plain"]
    for name, source in stack_folders.items():
        convert_checkpoint(source, tmp_path / name, to="torch", world_size=2)
        assert verify_checkpoints(source, tmp_path / name).is_same
    assert_loads({tmp_path / name: wanted for name in stack_folders})


def test_the_rest_of_a_folder_comes_along(stack_folders: dict[str, Path], tmp_path: Path) -> None:
    convert_checkpoint(stack_folders["hf_trainer"], tmp_path / "hf", to="torch")
    for name in ("scheduler.pt", "rng_state_0.pth", "trainer_state.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (stack_folders["hf_trainer"] / name).read_bytes()
    # Weights that are there a second time come along as the file that they are.
    convert_checkpoint(stack_folders["hf_trainer_full"], tmp_path / "full", to="torch")
    assert (tmp_path / "full" / "model.safetensors").exists()
    convert_checkpoint(stack_folders["olmo_new"], tmp_path / "olmo", to="torch")
    loaded = load_with_torch(tmp_path / "olmo")
    assert loaded["train"] == {"epoch": 3, "rng": {"seed": 0}}
    assert loaded["ranks"]["1"]["train"] == {"rng": {"seed": 1}}
    convert_checkpoint(stack_folders["dpo"], tmp_path / "dpo", to="torch")
    assert load_with_torch(tmp_path / "dpo")["model_info"]["step_idx"] == 2
    convert_checkpoint(stack_folders["torchtune"], tmp_path / "tune", to="torch")
    assert load_with_torch(tmp_path / "tune")["epochs_run"] == 1


def test_lightning_is_known_by_its_meta_file(rank_sources: RankSources, tmp_path: Path) -> None:
    folder = tmp_path / "last.ckpt"
    shutil.copytree(rank_sources.folder / "plain" / "model_and_optim", folder)
    assert inspect_checkpoint(folder).stack == "torch"
    torch.save({"epoch": 1, "pytorch-lightning_version": "2.6.0"}, folder / "meta.pt")
    manifest = inspect_checkpoint(folder)
    assert (manifest.stack, "meta.pt" in manifest.evidence) == ("lightning", True)


def test_several_models_and_optimizers(rank_sources: RankSources, tmp_path: Path) -> None:
    model, optimizer = whole_states(rank_sources.expected["plain"])
    for suffix in ("", "_1"):
        torch.save(model, tmp_path / f"pytorch_model_fsdp{suffix}.bin")
        torch.save(optimizer, tmp_path / f"optimizer{suffix}.bin")
    names = [(part.kind, part.name) for part in inspect_checkpoint(tmp_path).parts]
    assert names == [
        ("model", "model"),
        ("model", "model_1"),
        ("optimizer", "optimizer"),
        ("optimizer", "optimizer_1"),
    ]
    sharded = tmp_path / "sharded"
    for number in range(2):
        for name in ("pytorch_model_fsdp_{}", "optimizer_{}"):
            source = rank_sources.folder / "plain" / name.format(0)
            shutil.copytree(source, sharded / name.format(number))
    assert [(part.kind, part.name) for part in inspect_checkpoint(sharded).parts] == names


def test_folders_that_are_no_one_checkpoint(rank_sources: RankSources, tmp_path: Path) -> None:
    for step in (1, 2):
        hf_trainer(rank_sources, tmp_path / f"checkpoint-{step}")
    with pytest.raises(CheckpointFormatError, match=r"it holds 4.*Name the one"):
        inspect_checkpoint(tmp_path)
    twice = tmp_path / "twice"
    twice.mkdir()
    accelerate_full(rank_sources, twice)
    shutil.copytree(rank_sources.folder / "plain" / "pytorch_model_fsdp_0", twice / "pytorch_model_fsdp_0")
    with pytest.raises(CheckpointFormatError, match="which another file there holds too"):
        inspect_checkpoint(twice)
