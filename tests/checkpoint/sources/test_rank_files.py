"""Files of ranks, whatever they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import UnsupportedFeatureError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.rank_sources import RankSources, assert_loads
from tests.checkpoint.samples import FROM_GPU, load_with_torch
from tests.checkpoint.writers import put
from tests.models import Block, Net


if TYPE_CHECKING:
    from pathlib import Path


# What a rank calls its file: with its number in it, or the first without one.
NAMES = {
    "of": "model-0000{}-of-00002.pt",
    "rank-of": "rank-0000{}-of-00002-state.pt",
    "rank-first": "rank_{}_state.pt",
    "shard": "checkpoint_last-shard{}.pt",
    "number": "ckpt_{}.pt",
    "number-alone": "part{}.pt",
    "number-within": "r{}_step1.pt",
    "folder": "rank{}/state.pt",
    "appended": "checkpoint.th.{}",
}


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


@pytest.mark.parametrize("name", ["full.pt", "sharded", "local"])
def test_what_was_written_on_a_gpu_is_read_without_one(name: str, tmp_path: Path) -> None:
    """Each tensor is of `cuda:0`, which torch.load refuses where there is none."""
    files = [*FROM_GPU.glob(f"{name}/*")] or [FROM_GPU / name]
    assert all(b"cuda:0" in file.read_bytes() for file in files)
    arguments: dict[str, Any] = {
        "auto_wrap_policy": {Block},
        "mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
        "use_orig_params": False,
    }
    options = SourceOptions(model=outline_model(Net(), arguments)) if name == "local" else None
    convert_checkpoint(FROM_GPU / name, tmp_path / "out", options=options)
    loaded = load_with_torch(tmp_path / "out")["model"]
    expected = torch.load(FROM_GPU / "expected.pt", weights_only=True)
    assert all(torch.equal(loaded[key], value) for key, value in expected.items())


def test_numbers_of_steps_and_of_pieces_are_not_those_of_ranks(tmp_path: Path) -> None:
    steps, pieces, folds = (tmp_path / name for name in ("steps", "pieces", "folds"))
    for folder in (steps, pieces, folds):
        folder.mkdir()
    for number in range(2):
        torch.save({"model": {"a.weight": torch.full((2, 2), float(number))}}, steps / f"ckpt_{number}.pt")
        torch.save({f"a.{number}": torch.ones(2)}, pieces / f"model-0000{number}-of-00002.bin")
        torch.save({"model": {"a.weight": torch.full((2, 2), float(number))}}, folds / f"fold{number}.pt")
    for folder in (steps, folds):
        with pytest.raises(UnsupportedFeatureError, match="2 files"):
            inspect_checkpoint(folder)
    assert set(inspect_checkpoint(pieces).entries) == {"a.0", "a.1"}


@pytest.mark.parametrize("is_composers", [True, False])
def test_a_file_of_rank_0_that_is_whole_is_no_part_of_another(is_composers: bool, tmp_path: Path) -> None:
    """Composer's `ba{batch}-rank{rank}.pt` of full states, of which rank 0 alone saves one."""
    for batch in (4, 8):
        model = {"model": {"a.weight": torch.full((2, 2), float(batch))}}
        state = {"state": {**model, "run_name": "a"}} if is_composers else model
        torch.save(state, tmp_path / f"ba{batch}-rank0.pt")
    with pytest.raises(UnsupportedFeatureError, match="each of which `inspect` looks at by itself"):
        inspect_checkpoint(tmp_path)
    assert inspect_checkpoint(tmp_path / "ba4-rank0.pt").layout == "file"
    (tmp_path / "ba4-rank0.pt").unlink()
    # One that is left is read, alone in its folder.
    assert inspect_checkpoint(tmp_path).layout == ("file" if is_composers else "ranks")


def test_files_of_a_run_of_one_rank_are_one_checkpoint(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.ones(2, 2)}, tmp_path / "model_world_size_1_rank_0.pt")
    states = {
        "state": {"a.weight": {"exp_avg": torch.ones(2, 2)}},
        "param_groups": [{"params": ["a.weight"]}],
    }
    torch.save(states, tmp_path / "optim_world_size_1_rank_0.pt")
    manifest = inspect_checkpoint(tmp_path)
    assert (manifest.layout, {part.kind for part in manifest.parts}) == ("ranks", {"model", "optimizer"})
