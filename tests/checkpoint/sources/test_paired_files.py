"""A model and its optimizer in files of their own."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoint_convert import OutputOptions, convert_checkpoint, inspect_checkpoint
from fsdp_migrate.errors import UnsupportedFeatureError
from tests.checkpoint.framework_folders import whole_states
from tests.checkpoint.rank_sources import RankSources, assert_loads, flat_options
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


def save_apart(sources: RankSources, folder: Path, step: int, optimizer_step: int | None = None) -> None:
    """As open_lm does it: two files of one step, each with more than the state in it."""
    model, optimizer = whole_states(sources.expected["plain"])
    told = {"epoch": step, "name": "run"}
    torch.save({**told, "state_dict": model, "samples_seen": 10}, folder / f"epoch_{step}.pt")
    number = step if optimizer_step is None else optimizer_step
    torch.save({**told, "optimizer": optimizer}, folder / f"optimizer_{number}.pt")
    torch.save({**told, "is_final": False}, folder / f"stats_{step}.pt")


def test_a_model_and_its_optimizer_in_files_of_any_names(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    save_apart(rank_sources, source, 2)
    manifest = inspect_checkpoint(source)
    assert (manifest.layout, "fits it" in manifest.evidence) == ("states", True)
    convert_checkpoint(source, tmp_path / "out", to="torch", world_size=2)
    loaded = load_with_torch(tmp_path / "out")
    told = {"epoch": 2, "name": "run"}
    assert (loaded["samples_seen"], loaded["optimizer_info"]) == (10, told)
    assert loaded["stats_2"] == {**told, "is_final": False}
    assert_loads_as(tmp_path / "out", rank_sources)


def assert_loads_as(output: Path, sources: RankSources) -> None:
    model, optimizer = whole_states(sources.expected["plain"])
    loaded = load_with_torch(output)
    assert all(torch.equal(loaded["state_dict"][name], value) for name, value in model.items())
    assert loaded["optimizer"]["state"].keys() == optimizer["state"].keys()


def test_files_of_different_steps_are_not_put_together(rank_sources: RankSources, tmp_path: Path) -> None:
    save_apart(rank_sources, tmp_path, 2, optimizer_step=1)
    with pytest.raises(UnsupportedFeatureError, match="3 files"):
        inspect_checkpoint(tmp_path)
    save_apart(rank_sources, tmp_path, 1)
    save_apart(rank_sources, tmp_path, 2)
    with pytest.raises(UnsupportedFeatureError, match="6 files"):
        inspect_checkpoint(tmp_path)


def test_an_optimizer_of_another_model_is_not_put_beside(rank_sources: RankSources, tmp_path: Path) -> None:
    save_apart(rank_sources, tmp_path, 2)
    torch.save({"state_dict": {"other.weight": torch.ones(2)}}, tmp_path / "epoch_2.pt")
    with pytest.raises(UnsupportedFeatureError, match="3 files"):
        inspect_checkpoint(tmp_path)


def test_a_full_model_beside_optimizers_of_ranks(rank_sources: RankSources, tmp_path: Path) -> None:
    """As Large-DiT does it: full weights, their average, and the optimizer of each rank as it is."""
    model, _ = whole_states(rank_sources.expected["plain"])
    source = tmp_path / "0000003"
    source.mkdir()
    torch.save(model, source / "consolidated.00-of-01.pth")
    torch.save(model, source / "consolidated_ema.00-of-01.pth")
    torch.save(argparse.Namespace(lr=0.1), source / "model_args.pth")
    for rank in range(2):
        own = rank_sources.folder / "plain" / f"optim_rank{rank}.pt"
        shutil.copy(own, source / f"optimizer.0000{rank}-of-00002.pth")
    options = flat_options("plain")
    parts = {part.kind: part.name for part in inspect_checkpoint(source, options=options).parts}
    assert parts == {"model": "model", "optimizer": "optimizer", "other": "consolidated_ema"}
    convert_checkpoint(source, tmp_path / "out", to="torch", world_size=2, options=options)
    assert_loads({tmp_path / "out": rank_sources.expected["plain"]})
    assert (tmp_path / "out" / "model_args.pth").exists()


def test_what_lies_beside_is_a_part_before_and_after_ranks_save_together(
    rank_sources: RankSources, tmp_path: Path
) -> None:
    """As FM425 asks for: `optimizer.pt` of all ranks, beside which the same `trainer.pt` was no part."""
    model, optimizer = whole_states(rank_sources.expected["plain"])
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        torch.save(model, tmp_path / name / "model.pt")
        torch.save({"step": 8, "scheduler": {"last_epoch": 8}}, tmp_path / name / "trainer.pt")
    for rank in range(2):
        own = rank_sources.folder / "plain" / f"optim_rank{rank}.pt"
        shutil.copy(own, tmp_path / "before" / f"optimizer_rank{rank}.pt")
    torch.save(optimizer, tmp_path / "after" / "optimizer.pt")
    before = inspect_checkpoint(tmp_path / "before", options=flat_options("plain"))
    after = inspect_checkpoint(tmp_path / "after")
    parts = {"model": "model", "optimizer": "optimizer", "other": "trainer"}
    assert [{part.kind: part.name for part in each.parts} for each in (before, after)] == [parts, parts]
    assert after.evidence.startswith("`model.pt` and `optimizer.pt`: a model, and an optimizer that fits it")
    convert_checkpoint(tmp_path / "after", tmp_path / "out", to="torch", world_size=2)
    assert load_with_torch(tmp_path / "out")["trainer"]["step"] == 8


def test_an_adapter_and_its_optimizer(tmp_path: Path) -> None:
    """As the HF Trainer saves a PEFT model with a full state: the file's names lack the adapter's."""
    source = tmp_path / "checkpoint-3"
    source.mkdir()
    name = "base_model.model.up.lora_A{}.weight"
    save_file({name.format(""): torch.ones(2, 3)}, source / "adapter_model.safetensors")
    moments = {"exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.zeros(2, 3), "step": torch.tensor(3.0)}
    group = {"lr": 0.1, "params": [name.format(".default")]}
    optimizer = {"state": {name.format(".default"): moments}, "param_groups": [group]}
    torch.save(optimizer, source / "optimizer.bin")
    manifest = inspect_checkpoint(source)
    assert [(part.kind, part.name) for part in manifest.parts] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
    ]
    (found,) = (finding for finding in manifest.findings if finding.code == "FM278")
    rename = str(found.hint).split("'")[1]
    convert_checkpoint(source, tmp_path / "out", to="torch", output_options=OutputOptions(renames=(rename,)))
    loaded = load_with_torch(tmp_path / "out")
    assert set(loaded["model"]) == set(loaded["optim"]["state"]) == {name.format(".default")}


@pytest.mark.parametrize("is_pefts", [True, False])
def test_lora_made_by_hand_is_given_no_names_of_pefts(tmp_path: Path, is_pefts: bool) -> None:
    source = tmp_path / "adapter-8"
    source.mkdir()
    torch.save({"up.lora_A.weight": torch.ones(2, 3)}, source / "adapter_model.bin")
    moments = {"exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.zeros(2, 3), "step": torch.tensor(3.0)}
    optimizer = {
        "state": {"up.lora_A.weight": moments},
        "param_groups": [{"lr": 0.1, "params": ["up.lora_A.weight"]}],
    }
    torch.save(optimizer, source / "optimizer.bin")
    if is_pefts:
        (source / "adapter_config.json").write_text("{}")
    codes = [each.code for each in inspect_checkpoint(source).findings]
    assert ("FM278" in codes) is is_pefts
