"""Ranks whose files contradict each other, and placements that cannot be put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert.sources.per_rank import read_rank
from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState, merge_states
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    UnsupportedFeatureError,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


def _states(folder: Path) -> list[RankState]:
    source = open_folder(folder)
    return [
        read_rank(source, name, (folder / name).stat().st_size, rank)
        for rank, name in enumerate(("sharded_rank0.pt", "sharded_rank1.pt"))
    ]


def _shards(state: RankState, key: str) -> Any:
    """Return the description of the first local shard in a ShardedTensor's pickle."""
    value: Any = state.leaves[key][1]
    return (
        value.state[0][0].state[1] if isinstance(value.state[0][0].state, tuple) else value.state[0][0].state
    )


def _overlap(states: list[RankState], key: str) -> None:
    for state in states:
        value: Any = state.leaves[key][1]
        for shard in (*value.state[1].state["shards_metadata"], _shards(states[1], key)["metadata"]):
            fields = shard.state[1]
            fields["shard_offsets"] = [min(6, *fields["shard_offsets"][:1]), 0]
            fields["shard_offsets"][0] = 6 if fields["shard_offsets"][0] else 0


def _other_dtype(states: list[RankState], key: str) -> None:
    value: Any = states[1].leaves[key][1]
    value.state[1].state["tensor_properties"].dtype = "float64"


def _other_size(states: list[RankState], key: str) -> None:
    value: Any = states[1].leaves[key][1]
    value.state[1].state["size"] = (99, 6)


def _cut_shard(states: list[RankState], key: str) -> None:
    _shards(states[1], key)["tensor"].shape = (2, 6)


def _no_list(states: list[RankState], key: str) -> None:
    value: Any = states[0].leaves[key][1]
    value.state[1].state["shards_metadata"] = None


def _missing_key(states: list[RankState], key: str) -> None:
    for state in states:
        value: Any = state.leaves[key][1]
        del value.state[1].state["shards_metadata"][1]
    value = states[1].leaves[key][1]
    value.state[0].clear()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (_overlap, CheckpointMismatchError, "overlap.*sharded_rank0.pt.*sharded_rank1.pt"),
        (_other_dtype, CheckpointFormatError, "its local part is float32"),
        (_other_size, CheckpointMismatchError, r"\[13, 6\] in `sharded_rank0.pt`.*\[99, 6\]"),
        (_cut_shard, CheckpointFormatError, r"shape \[2, 6\], expected \[6, 6\]"),
        (_no_list, CheckpointFormatError, "not described as any torch"),
        (_missing_key, CheckpointMismatchError, "elements are in no chunk"),
    ],
)
def test_ranks_that_contradict_each_other(
    change: Callable[[list[RankState], str], None],
    error: type[Exception],
    match: str,
    rank_sources: RankSources,
    tmp_path: Path,
) -> None:
    folder = rank_sources.copy("plain", "sharded", tmp_path / "source")
    states = _states(folder)
    change(states, "model.embed.weight")
    with pytest.raises(error, match=match):
        merge_states(open_folder(folder), states)


def test_placements_that_cannot_be_put_together(rank_sources: RankSources, tmp_path: Path) -> None:
    folder = rank_sources.copy("mesh", "sharded", tmp_path / "source")
    states = _states(folder)
    value: Any = states[0].leaves["model.embed.weight"][1]
    spec = value.state[1]["_spec"].state
    shard = spec["placements"][0]
    mesh = spec["mesh"].state
    for fields in ({"dim": 0}, {"dim": 0, "split_factor": 2}):
        shard.state = fields
        spec["placements"] = (shard, shard)
        mesh["mesh" if "mesh" in mesh else "_mesh"] = value.state[1]["_local_tensor"]
        mesh["_coordinate_on_dim"] = [0, 0]
        with pytest.raises((UnsupportedFeatureError, CheckpointFormatError)):
            merge_states(open_folder(folder), states)
