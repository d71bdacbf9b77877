"""Which ranks Composer's words for process groups, and lists of ranks, put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fsdp_migrate.adapters.config_objects.composer import composer_fsdp1_config
from fsdp_migrate.adapters.config_objects.composer_groups import GroupWord, read_group
from fsdp_migrate.errors import ConfigError


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["set", "mod"]))
def test_words_for_groups_part_the_ranks(size: int, count: int, kind: Any) -> None:
    """Every rank is in one group, with as many others; the groups of ``set`` and ``mod`` cross once."""
    world = size * count
    group = GroupWord(kind, size, word=f"{kind}{size}")
    groups = {group.ranks_of(rank, world, 1) for rank in range(world)}
    assert sorted(rank for each in groups for rank in each) == list(range(world))
    other = GroupWord("set" if kind == "mod" else "mod", size, word="other")
    for rank in range(world):
        assert set(group.ranks_of(rank, world, 1)) & set(other.ranks_of(rank, world, 1)) == {rank}


def test_a_group_object_is_handed_on() -> None:
    group = object()
    assert composer_fsdp1_config({"process_group": group}, precision="amp_bf16").config.process_group is group
    assert read_group("none") is None


def test_lists_of_ranks_must_hold_the_rank() -> None:
    group = read_group([0, 2])
    assert group.ranks_of(2, 4, 4) == (0, 2)
    with pytest.raises(ConfigError, match="rank 1"):
        group.ranks_of(1, 4, 4)
    with pytest.raises(ConfigError, match="no multiple of 3"):
        read_group("set3").ranks_of(0, 4, 4)
