"""Checkpoints under the names, and with the values, that frameworks' own writers give them."""

from __future__ import annotations

import argparse
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.errors import CheckpointMismatchError, UnsupportedFeatureError
from tests.checkpoint.framework_folders import accessory, whole_states
from tests.checkpoint.samples import load_with_torch


if TYPE_CHECKING:
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


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
    for named in (tmp_path, tmp_path / name.format(0), tmp_path / name.format(1)):
        with pytest.raises(UnsupportedFeatureError, match="tensor-parallel"):
            inspect_checkpoint(named)
    # The first alone may be all of a model.
    (tmp_path / name.format(1)).unlink()
    assert any("a.weight" in key for key in inspect_checkpoint(tmp_path / name.format(0)).entries)


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
