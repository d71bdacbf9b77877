"""Folders of frameworks as they leave them on disk, converted as a whole and loaded with torch."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    check_checkpoint,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.checkpoint_convert.sources.framework_folders import FRAMEWORK_FOLDERS
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError
from tests.checkpoint.framework_folders import FOLDERS, accelerate_full, hf_trainer, whole_states
from tests.checkpoint.rank_sources import RankSources, assert_loads
from tests.checkpoint.samples import load_with_torch, save_with_torch
from tests.rank_bodies.sources import RankNet


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def framework_folders(rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("frameworks")
    folders = {make.__name__: root / make.__name__ for make in FOLDERS}
    for make in FOLDERS:
        folders[make.__name__].mkdir()
        make(rank_sources, folders[make.__name__])
    return folders


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_the_framework_and_its_parts_are_recognised(
    make: Callable[[RankSources, Path], None], framework_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = framework_folders[make.__name__]
    manifest = inspect_checkpoint(source)
    assert (manifest.layout, manifest.framework) == FOLDERS[make]
    parts = {part.kind: part.prefix for part in manifest.parts if part.kind != "other"}
    assert parts in (
        {"model": ("model",), "optimizer": ("optimizer",)},
        {"model": ("model",), "optimizer": ("optim",)},
    )
    convert_checkpoint(source, tmp_path / "out", to="auto")
    convert_checkpoint(source, tmp_path / "weights", weights_only=True, to="torch")
    assert set(load_with_torch(tmp_path / "weights")["model"]) == set(RankNet().state_dict())


def test_every_framework_has_a_folder_here() -> None:
    assert {layout for layout, _ in FOLDERS.values()} == set(FRAMEWORK_FOLDERS)


def test_torch_loads_what_frameworks_saved(
    rank_sources: RankSources, framework_folders: dict[str, Path], tmp_path: Path
) -> None:
    wanted = rank_sources.expected["plain"]
    for name, source in framework_folders.items():
        convert_checkpoint(source, tmp_path / name, to="torch", world_size=2)
        assert verify_checkpoints(source, tmp_path / name).is_same
    assert_loads({tmp_path / name: wanted for name in framework_folders})


def test_the_rest_of_a_folder_comes_along(framework_folders: dict[str, Path], tmp_path: Path) -> None:
    convert_checkpoint(framework_folders["hf_trainer"], tmp_path / "hf", to="torch")
    for name in ("scheduler.pt", "rng_state_0.pth", "trainer_state.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (framework_folders["hf_trainer"] / name).read_bytes()
    # Weights that are there a second time come along as the file that they are.
    convert_checkpoint(framework_folders["hf_trainer_full"], tmp_path / "full", to="torch")
    assert (tmp_path / "full" / "model.safetensors").exists()
    convert_checkpoint(framework_folders["olmo_new"], tmp_path / "olmo", to="torch")
    loaded = load_with_torch(tmp_path / "olmo")
    assert loaded["train"] == {"epoch": 3, "rng": {"seed": 0}}
    assert loaded["ranks"]["1"]["train"] == {"rng": {"seed": 1}}
    convert_checkpoint(framework_folders["dpo"], tmp_path / "dpo", to="torch")
    assert load_with_torch(tmp_path / "dpo")["model_info"]["step_idx"] == 2
    convert_checkpoint(framework_folders["torchtune"], tmp_path / "tune", to="torch")
    assert load_with_torch(tmp_path / "tune")["epochs_run"] == 1


def test_lightning_is_known_by_its_meta_file(rank_sources: RankSources, tmp_path: Path) -> None:
    folder = tmp_path / "last.ckpt"
    shutil.copytree(rank_sources.folder / "plain" / "model_and_optim", folder)
    assert inspect_checkpoint(folder).framework == "torch"
    # A script's own file of that name, and a name that it has for its optimizer.
    torch.save({"step": 4}, folder / "meta.pt")
    assert inspect_checkpoint(folder).framework == "torch"
    convert_checkpoint(folder, tmp_path / "out")
    assert load_with_torch(tmp_path / "out").keys() == {"model", "optim"}
    torch.save({"epoch": 1, "pytorch-lightning_version": "2.6.0"}, folder / "meta.pt")
    manifest = inspect_checkpoint(folder)
    assert (manifest.framework, "meta.pt" in manifest.evidence) == ("lightning", True)


def test_fabrics_folder_keeps_the_names_that_its_script_gave(
    rank_sources: RankSources, tmp_path: Path
) -> None:
    folder = tmp_path / "step-4"
    shutil.copytree(rank_sources.folder / "plain" / "model_and_optim", folder)
    torch.save({"step": 4, "sched": {"last_epoch": 4}}, folder / "meta.pt")
    manifest = inspect_checkpoint(folder)
    assert (manifest.framework, "Fabric" in manifest.evidence) == ("torch", True)
    advice = advise_loading(manifest).by_framework or ""
    assert "Fabric loads it with `ModelParallelStrategy` and `fabric.load`" in advice
    # Which a script's own folder looks like, too.
    assert "a script of your own loads it by `dcp.load`, and `meta.pt` by `torch.load`" in advice
    convert_checkpoint(folder, tmp_path / "out")
    assert set(inspect_checkpoint(tmp_path / "out").entries) == set(manifest.entries)
    assert (tmp_path / "out" / "meta.pt").read_bytes() == (folder / "meta.pt").read_bytes()
    (folder / "meta.pt").unlink()
    assert "Fabric" not in (advise_loading(inspect_checkpoint(folder)).by_framework or "")


def test_a_folder_with_more_than_fabric_puts_there_is_a_scripts_own(tmp_path: Path) -> None:
    state = {"model": {"up.weight": torch.ones(4)}, "sched": {"last_epoch": 4}}
    folder = save_with_torch(state, tmp_path / "step-4")
    torch.save({"step": 4}, folder / "meta.pt")
    manifest = inspect_checkpoint(folder)
    assert manifest.framework == "torch"
    advice = advise_loading(manifest).by_framework or ""
    assert "Fabric" not in advice
    assert "`dcp.load`, and `meta.pt` by `torch.load`" in advice


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
    with pytest.raises(CheckpointFormatError, match=r"it holds 2: `checkpoint-1`, `checkpoint-2`\. Name"):
        inspect_checkpoint(tmp_path)
    twice = tmp_path / "twice"
    twice.mkdir()
    accelerate_full(rank_sources, twice)
    shutil.copytree(rank_sources.folder / "plain" / "pytorch_model_fsdp_0", twice / "pytorch_model_fsdp_0")
    with pytest.raises(CheckpointFormatError, match="which another file there holds too"):
        inspect_checkpoint(twice)


def of_components(model: dict[str, Any], folder: Path, names: tuple[str, str]) -> Path:
    """Save a model and an optimizer as two distributed checkpoints in one folder."""
    states = {"1.weight": {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.ones(3), "step": torch.tensor(2.0)}}
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "params": ["1.weight"]}
    for name, state in zip(
        names, (model, {"optimizer": {"state": states, "param_groups": [group]}}), strict=True
    ):
        save_with_torch(state, folder / name)
    return folder


@pytest.mark.parametrize(
    ("names", "is_bare"), [(("pytorch_model_fsdp_0", "optimizer_0"), False), (("model", "optim"), True)]
)
def test_statistics_that_ranks_do_not_share_are_named_in_components(
    names: tuple[str, str], is_bare: bool, tmp_path: Path
) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).state_dict()
    manifest = inspect_checkpoint(of_components(state if is_bare else {"model": state}, tmp_path, names))
    (finding,) = [found for found in manifest.findings if found.code == "FM289"]
    assert finding.subject == "model.1.running_mean"
    assert finding.subject in manifest.entries


def test_flat_parameters_of_components_are_refused_once(tmp_path: Path) -> None:
    """What would help files of ranks is no way out of a distributed checkpoint, which has lost them."""
    state = {"model": {"_flat_param": torch.ones(4), "1._flat_param": torch.ones(4)}}
    folder = of_components(state, tmp_path, ("pytorch_model_fsdp_0", "optimizer_0"))
    refused = [found for found in inspect_checkpoint(folder).findings if found.fidelity == "refused"]
    assert [found.code for found in refused] == ["FM223"]


def test_checksums_are_of_their_folder_alone(framework_folders: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(framework_folders["hf_trainer"], tmp_path / "source")
    for name in ("SHA256SUMS", "pytorch_model_fsdp_0/SHA256SUMS", "more/SHA256SUMS"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(f"{'0' * 64}  .metadata\n")
    carried = inspect_checkpoint(source).extra_files
    assert [name for name in carried if name.endswith("SHA256SUMS")] == ["more/SHA256SUMS"]
    # An output has its own, or none that its files are held against.
    convert_checkpoint(source, tmp_path / "out", to="torch", checksums=True)
    assert check_checkpoint(tmp_path / "out").is_whole


@pytest.mark.parametrize("name", ["", "consolidated.01-of-02.model.pth"])
def test_slices_of_tensor_parallel_ranks_are_refused(name: str, tmp_path: Path) -> None:
    """Each file looks like a whole model, and is a part of one."""
    for rank in range(2):
        for part in ("model", "optimizer"):
            file = tmp_path / f"consolidated.0{rank}-of-02.{part}.pth"
            torch.save({part: {"wq.weight": torch.ones(2, 4)}}, file)
    with pytest.raises(UnsupportedFeatureError, match="one of 2 tensor-parallel ranks") as caught:
        inspect_checkpoint(tmp_path / name)
    assert caught.value.feature == "tensor-parallel slices in files"
