"""Ranks whose models have values of their own: the run begins with other weights than FSDP1, and says so."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding import own_values_bodies as own_values


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("own seeds", "`0.weight`, `0.bias`, `2.weight`, "),  # what is 1 or 0 on every rank is the same
        ("one value", "`2.weight`, "),
        ("one seed", ""),
        ("sent", ""),
    ],
)
def test_ranks_with_values_of_their_own_are_told(kind: str, named: str) -> None:
    """FSDP1 said nothing, and cut the ranks' values elsewhere: nobody could tell why losses differed."""
    for said, ours, theirs in run_ranks(own_values.prepared, kind):
        assert [each.startswith(f"The ranks have different values in {named}") for each in said] == [True] * (
            bool(named)
        )
        if kind in {"own seeds", "one seed"}:  # a number alone may be in the same rank's part in both
            same = all(map(torch.equal, ours, theirs))
            assert same is not bool(named)


def test_what_is_not_sharded_is_each_ranks_own() -> None:
    assert run_ranks(own_values.ignored) == [[], []]


def test_parameters_are_looked_at_however_they_lie() -> None:
    for said in run_ranks(own_values.laid_out):
        assert said[0].startswith("The ranks have different values in `turned`, `conv.weight`, `conv.bias`, ")
