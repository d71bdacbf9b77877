"""Evaluation under Composer's search for a microbatch size: one rank without memory, and all agree."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.composer_trainer.composer_evaluation_bodies import evaluate
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer

FAILURES = {
    "nothing": ("nowhere", 0, ""),
    "in the first forward": ("forward", 1, "memory"),
    "in a later forward": ("forward", 2, "memory"),
    "in a metric": ("metric", 2, "memory"),
    "in the last metric": ("metric", 4, "memory"),
    "in another way": ("forward", 2, "otherwise"),
    "at any size": ("forward", 1, "always"),
}
SEARCHES = ("in the first forward", "in a later forward", "in a metric", "in the last metric")


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    return run_ranks(evaluate, FAILURES, timeout=400)


@pytest.mark.parametrize("case", SEARCHES)
def test_a_smaller_size_on_all_ranks_finds_the_same(outcomes: list[dict[str, Any]], case: str) -> None:
    for found in outcomes:
        whole, after = found["nothing"], found[case]
        assert "error" not in after, after["error"]
        assert (whole["size"], after["size"]) == (2, 1)
        assert after["accuracy"] == whole["accuracy"]
        # Two parts of each of two batches; then four, but for what was run before memory ran out.
        assert whole["updates"] == 4
        assert after["updates"] == (8 if case != "in the last metric" else 6)
        assert after["is_put_back"]
        assert after["sharded"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("in another way", "rank 1: ValueError: not memory"),
        ("at any size", "failed with an internal microbatch of size 1"),
    ],
)
def test_other_failures_are_errors_on_every_rank(
    outcomes: list[dict[str, Any]], case: str, text: str
) -> None:
    for found in outcomes:
        assert text in found[case]["error"]
