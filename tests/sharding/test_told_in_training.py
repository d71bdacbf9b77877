"""What is said in training, once and where it bites."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.sharding import words_bodies as words


@pytest.mark.parametrize("way", ["no_sync", "last", "every"])
@pytest.mark.parametrize("reduce", ["float32", "bfloat16"])
def test_the_dtype_of_sums_is_told_where_gradients_are_summed(way: str, reduce: str) -> None:
    first, second = run_ranks(words.where_gradients_add_up, way, reduce)
    assert second == [[], [], []]
    if way == "every" or reduce == "bfloat16":
        assert first == [[], [], []]
        return
    before, told, again = first
    assert before == again == []
    assert "added up in float32, where FSDP1 added them up in bfloat16" in told[0]


def test_a_unit_of_which_only_the_frozen_part_is_used_is_told_once() -> None:
    ranks = run_ranks(words.gradients_where_only_frozen_is_used)
    for step in (1, 2):
        # Of two ranks, FSDP1 gives one all of this small parameter.
        assert [0.0] in [found[step][0] for found in ranks]
    for found in ranks:
        ours = found[3:]
        assert ours[0][0][0] > 0
        assert [gradients for gradients, _ in ours[1:]] == [[None]] * 2
        assert [len(lines) for _, lines in ours] == [0, 1, 0]
        assert ours[1][1][0].startswith("FM124 first: In this step no trained parameter of this unit")
