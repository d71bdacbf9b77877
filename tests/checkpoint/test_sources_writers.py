"""Checkpoints under the names, and with the values, that frameworks' own writers give them."""

from __future__ import annotations

import argparse
import shutil
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import CheckpointFormatError, CheckpointMismatchError, UnsupportedFeatureError
from tests.checkpoint.framework_folders import accessory, cookbook, whole_states
from tests.checkpoint.rank_sources import RankSources, assert_loads, flat_options
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


# What a rank calls its file: with its number in it, or the first without one.
NAMES = {
    "of": "model-0000{}-of-00002.pt",
    "rank-of": "rank-0000{}-of-00002-state.pt",
    "rank-first": "rank_{}_state.pt",
    "shard": "checkpoint_last-shard{}.pt",
    "number": "ckpt_{}.pt",
    "folder": "rank{}/state.pt",
    "appended": "checkpoint.th.{}",
}


def put(sources: RankSources, folder: Path, pattern: str, kind: str = "plain") -> Path:
    """Give what two ranks saved other names."""
    for rank in range(2):
        name = pattern.format(rank).removesuffix(".0" if ".th" in pattern else "\0")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sources.folder / kind / f"sharded_rank{rank}.pt", folder / name)
    return folder


@pytest.mark.parametrize("pattern", NAMES.values(), ids=NAMES)
def test_files_of_ranks_are_known_whatever_they_are_called(
    pattern: str, rank_sources: RankSources, tmp_path: Path
) -> None:
    source = put(rank_sources, tmp_path / "in", pattern)
    manifest = inspect_checkpoint(source)
    assert (manifest.layout, [part.name for part in manifest.parts]) == ("ranks", ["model", "optimizer"])
    convert_checkpoint(source, tmp_path / "out", to="torch")
    assert verify_checkpoints(rank_sources.folder / "plain" / "sharded_rank0.pt", tmp_path / "out").is_same
    if "/" not in pattern:
        first = pattern.format(0).removesuffix(".0" if ".th" in pattern else "\0")
        assert inspect_checkpoint(source / first).entries == manifest.entries


def test_torch_loads_what_ranks_saved_under_other_names(rank_sources: RankSources, tmp_path: Path) -> None:
    source = put(rank_sources, tmp_path / "in", NAMES["rank-first"])
    convert_checkpoint(source, tmp_path / "out", to="torch", world_size=2)
    assert_loads({tmp_path / "out": rank_sources.expected["plain"]})


@pytest.mark.parametrize("step", ["step_{}_rank_0.pt", "checkpoint_{}.th"], ids=["ranks", "appended"])
def test_which_of_several_steps_is_asked(step: str, rank_sources: RankSources, tmp_path: Path) -> None:
    names = [step.format(number) for number in (1, 2)]
    for name in names:
        put(rank_sources, tmp_path, name.replace("rank_0", "rank_{}") if "rank" in name else f"{name}.{{}}")
    with pytest.raises(CheckpointFormatError, match="more than one checkpoint") as caught:
        inspect_checkpoint(tmp_path)
    assert all(name.partition("_rank")[0] in str(caught.value) for name in names)
    assert inspect_checkpoint(tmp_path / names[1]).layout == "ranks"


def test_which_of_several_models_is_asked(rank_sources: RankSources, tmp_path: Path) -> None:
    for name in ("actor", "critic"):
        put(rank_sources, tmp_path / name, "model_world_size_2_rank_{}.pt")
    with pytest.raises(CheckpointFormatError, match=r"`actor/`, `critic/`"):
        inspect_checkpoint(tmp_path)
    assert inspect_checkpoint(tmp_path / "actor").layout == "ranks"


def test_which_of_several_epochs_of_llama_cookbook_is_asked(
    rank_sources: RankSources, tmp_path: Path
) -> None:
    cookbook(rank_sources, tmp_path)
    for name in ("llama--7B-0.pt", "optimizer-llama--7B-0.pt"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("-0.pt", "-1.pt"))
    with pytest.raises(CheckpointFormatError, match=r"holds 2 checkpoints.*7B-0.*7B-1"):
        inspect_checkpoint(tmp_path)
    assert len(inspect_checkpoint(tmp_path / "llama--7B-1.pt").parts) == 1


def test_numbers_of_steps_and_of_pieces_are_not_those_of_ranks(tmp_path: Path) -> None:
    steps, pieces = tmp_path / "steps", tmp_path / "pieces"
    for folder in (steps, pieces):
        folder.mkdir()
    for number in range(2):
        torch.save({"model": {"a.weight": torch.full((2, 2), float(number))}}, steps / f"ckpt_{number}.pt")
        torch.save({f"a.{number}": torch.ones(2)}, pieces / f"model-0000{number}-of-00002.bin")
    with pytest.raises(UnsupportedFeatureError, match="2 files"):
        inspect_checkpoint(steps)
    assert set(inspect_checkpoint(pieces).entries) == {"a.0", "a.1"}


def test_whole_weights_that_differ_by_rank_are_no_buffers(tmp_path: Path) -> None:
    for rank in range(2):
        state = {"a.weight": torch.full((2, 2), float(rank)), "a.bias": torch.zeros(2) + rank}
        torch.save({"model": state}, tmp_path / f"rank{rank}.pt")
    with pytest.raises(CheckpointMismatchError, match=r"2 of 2 tensors.*tensor parallelism"):
        inspect_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["consolidated.0{}.pth", "mp_rank_0{}_model_states.pt"])
def test_slices_of_tensor_parallelism_are_named_as_such(name: str, tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"a.weight": torch.full((2, 2), float(rank))}, tmp_path / name.format(rank))
    with pytest.raises(UnsupportedFeatureError, match="tensor-parallel"):
        inspect_checkpoint(tmp_path)


def test_what_llama2_accessory_saves_beside_its_states(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "epoch0-iter3"
    source.mkdir()
    accessory(rank_sources, source)
    arguments = argparse.Namespace(lr=0.1, precision="bf16")
    torch.save({"iter": 3, "args": arguments}, source / "consolidated.00-of-01.other.pth")
    for rank in range(2):
        path = source / f"rank-specific-0000{rank}-of-00002.pth"
        torch.save({"dataset_state": {"position": rank}}, path)
    convert_checkpoint(source, tmp_path / "out", to="torch")
    loaded = load_with_torch(tmp_path / "out")
    assert loaded["consolidated"] == {"iter": 3, "args": arguments}
    assert loaded["rank-specific"] == {"dataset_state": {"position": 0}}
    assert loaded["ranks"]["1"]["rank-specific"] == {"dataset_state": {"position": 1}}


class HistoryBuffer:
    """As mmengine's: its values, and its own functions by name."""

    def __init__(self) -> None:
        self._log_history = np.array([1.0, 0.5])
        self.max_length = 10

    def mean(self) -> float:
        return float(np.mean(self._log_history))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "statistics_methods": {"mean": HistoryBuffer.mean}}


def test_logs_of_mmengine_become_plain_values(
    rank_sources: RankSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = whole_states(rank_sources.expected["plain"])
    where = "mmengine.logging.history_buffer"
    with monkeypatch.context() as patch:
        for name in ("mmengine", "mmengine.logging", where):
            patch.setitem(sys.modules, name, types.ModuleType(name))
        patch.setattr(sys.modules[where], "HistoryBuffer", HistoryBuffer, raising=False)
        patch.setattr(HistoryBuffer, "__module__", where)
        hub = {"log_scalars": {"train/loss": HistoryBuffer()}, "runtime_info": {"iter": 3}}
        state = {"state_dict": model, "optimizer": optimizer, "message_hub": hub}
        torch.save(state, tmp_path / "epoch_1.pth")
    report = convert_checkpoint(tmp_path / "epoch_1.pth", tmp_path / "out", to="torch")
    found = [finding for finding in report.findings if finding.code == "FM277"]
    assert [(f.fidelity, where in f.message) for f in found] == [("changed", True)]
    loaded = load_with_torch(tmp_path / "out")["message_hub"]
    kept = loaded["log_scalars"]["train/loss"]
    assert (kept.keys(), loaded["runtime_info"]) == ({"_log_history", "max_length"}, {"iter": 3})
    assert kept["_log_history"].tolist() == [1.0, 0.5]


def test_each_model_of_a_list_is_one(rank_sources: RankSources, tmp_path: Path) -> None:
    model, optimizer = whole_states(rank_sources.expected["plain"])
    state = {"model": [model, model], "optimizer": [optimizer, optimizer], "step": 3}
    torch.save(state, tmp_path / "ckpt.pt")
    parts = [(part.kind, part.name) for part in inspect_checkpoint(tmp_path / "ckpt.pt").parts]
    assert parts[:2] == [("model", "model.0"), ("model", "model.1")]
    convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out", to="torch")
    assert load_with_torch(tmp_path / "out")["model"][1].keys() == model.keys()


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
