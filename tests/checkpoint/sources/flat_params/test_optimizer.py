"""Numbered optimizer states of flat parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.errors import CheckpointMismatchError, PlanError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.framework_folders import mmengine_local
from tests.checkpoint.rank_sources import RankSources, flat_options
from tests.checkpoint.samples import load_with_torch
from tests.rank_bodies.flat_sources import TiedApart, groups_of, save_grouped, save_plain_sgd
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box
    from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry


def test_mmengine_keeps_flat_parameters_beside_named_moments(
    rank_sources: RankSources, tmp_path: Path
) -> None:
    """``epoch_1.pth`` is a folder: LOCAL_STATE_DICT of the model, and FSDP.optim_state_dict."""
    source = tmp_path / "epoch_1.pth"
    source.mkdir()
    mmengine_local(rank_sources, source)
    with pytest.raises(PlanError, match="FM238"):
        convert_checkpoint(source, tmp_path / "out")
    convert_checkpoint(source, tmp_path / "out", options=flat_options("flat"))
    loaded, expected = load_with_torch(tmp_path / "out"), rank_sources.expected["flat"]
    found = {f"model.{name}": tensor for name, tensor in loaded["state_dict"].items()}
    for name, moments in loaded["optimizer"]["state"].items():
        found.update({f"optimizer.{name}.{moment}": tensor for moment, tensor in moments.items()})
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert loaded["meta"] == {"epoch": 1, "seed": 3}
    assert loaded["param_schedulers"] == [{"last_step": 2}]


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_sgd_without_momentum_has_numbers_and_no_state(use_orig_params: bool, tmp_path: Path) -> None:
    """So nothing but the flat parameters beside it tells that its numbers are those of flat parameters."""
    wanted = run_ranks(save_plain_sgd, str(tmp_path / "source"), use_orig_params)[0]
    arguments = {"auto_wrap_policy": "Linear", "use_orig_params": use_orig_params}
    options = SourceOptions(model=outline_model(TiedApart(tied=False), arguments))
    convert_checkpoint(tmp_path / "source", tmp_path / "out", options=options)
    state = load_with_torch(tmp_path / "out")
    for name, tensor in wanted.items():
        assert torch.equal(state["model"][name], tensor), name
    (group,) = state["optim"]["param_groups"]
    assert sorted(group["params"]) == sorted(wanted)


@pytest.mark.parametrize("kind", ["Adagrad", "AdamW"])
def test_groups_and_steps_of_ranks_without_elements(kind: str, tmp_path: Path) -> None:
    """Sizes cannot tell an order that is not the model's; Adagrad counts no steps without elements."""
    wanted = run_ranks(save_grouped, str(tmp_path / "source"), kind)[0]
    model = TiedApart(tied=False)
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    arguments = {"auto_wrap_policy": "Linear", "use_orig_params": True}
    options = SourceOptions(model=outline_model(model, arguments, optimizer=optimizer))
    convert_checkpoint(tmp_path / "source", tmp_path / "out", options=options)
    state = load_with_torch(tmp_path / "out")["optim"]["state"]
    assert state.keys() == wanted.keys()
    for name, fields in wanted.items():
        assert state[name].keys() == fields.keys()
        assert all(torch.equal(state[name][field], value) for field, value in fields.items()), name


@pytest.mark.parametrize("checksums", [True, False])
def test_replicas_of_flat_state_are_compared(
    checksums: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under NO_SHARD each rank saves all of it. With torch's checksums none of it is read for that."""
    moments = {name: torch.rand(6) for name in ("exp_avg", "exp_avg_sq")}
    state = {"state": {0: {"step": torch.tensor(1.0), **moments}}, "param_groups": [{"params": [0]}]}
    arguments = {"sharding_strategy": "NO_SHARD", "use_orig_params": False}
    options = SourceOptions(model=outline_model(torch.nn.Linear(2, 2), arguments))
    folder = tmp_path / "source"
    folder.mkdir()
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(checksums)
    try:
        for rank in range(2):
            torch.save(state, folder / f"optim_world_size_2_rank_{rank}.pt")
        read: list[str] = []
        monkeypatch.setattr(TensorSource, "read", _noting(read))
        inspect_checkpoint(folder, options=options)
        # Rank 0's is the one that is converted; some of it is read for FM217.
        assert ("optim_world_size_2_rank_1.pt" in read) is not checksums
        moments["exp_avg"][4] += 1
        state["state"][0].update(moments)  # type: ignore[index]
        torch.save(state, folder / "optim_world_size_2_rank_1.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    with pytest.raises(CheckpointMismatchError, match=r"rank_0.pt` and `.*rank_1.pt` hold the same.*exp_avg"):
        convert_checkpoint(folder, tmp_path / "out", options=options)


def _noting(read: list[str]) -> Callable[..., Iterator[memoryview]]:
    own = TensorSource.read

    def noting(self: TensorSource, entry: TensorEntry, box: Box) -> Iterator[memoryview]:
        read.extend(chunk.stored.file for chunk in entry.chunks)
        return own(self, entry, box)

    return noting
