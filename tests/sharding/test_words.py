"""What people are told is what is wrong, and where it bites."""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.sharding import words_bodies as words


def test_sharding_warns_of_nothing_deprecated() -> None:
    assert run_ranks(words.warnings_of_sharding) == [[], []]


def test_clipping_without_gradients_warns_as_fsdp1_did() -> None:
    for found in run_ranks(words.clip_without_gradients):
        (warning,) = found
        assert "found no gradient on this rank" in warning
