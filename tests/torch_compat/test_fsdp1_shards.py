"""FSDP1's parameters are gathered beside it: as torch itself shows them, and no bit of the run differs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.cases import Cases, assert_equal
from tests.torch_compat import fsdp1_shards_bodies as bodies


SETTINGS = [
    (strategy, is_flat, offloads)
    for strategy in bodies.STRATEGIES
    for is_flat in (False, True)
    for offloads in (False, True)
]
# With flat parameters that are not offloaded FSDP1 fails by itself: the optimizer gets gradients in bf16.
WATCHED = [
    (between, *setting)
    for between in bodies.BETWEEN
    for setting in SETTINGS
    if between != "a forward with gradients" or setting[1:] != (True, False)
]
BESIDE = Cases(bodies.beside_watching, WATCHED)
SHOWN = Cases(bodies.both_ways, SETTINGS)
IN_BETWEEN = Cases(
    bodies.before_backward, [(each, flat) for each in bodies.STRATEGIES for flat in (False, True)]
)


@pytest.mark.parametrize("case", WATCHED, ids=str)
def test_a_run_that_is_watched_is_the_same_run(case: tuple[Any, ...]) -> None:
    for (losses, params), (watched_losses, watched_params) in BESIDE.of(*case):
        assert watched_losses == losses
        assert_equal(watched_params, params)


def test_a_forward_before_the_step_counts() -> None:
    """Or else the cases above would not tell: by what FSDP1 gathers for it, its next step is computed."""
    for alone, evaluated in zip(
        BESIDE.of("nothing", *SETTINGS[0]), BESIDE.of("an evaluation", *SETTINGS[0]), strict=True
    ):
        assert alone[0][0] != evaluated[0][0][1::2]


@pytest.mark.parametrize("case", SETTINGS, ids=str)
def test_parameters_are_those_that_torch_shows(case: tuple[Any, ...]) -> None:
    for states in SHOWN.of(*case):
        assert len(states) == (2 if case[1] or case[0] == "NO_SHARD" else 3)
        for found, summoned in states.values():
            assert list(found) == list(summoned)
            assert_equal(found, summoned)


@pytest.mark.parametrize("case", IN_BETWEEN.cases, ids=str)
def test_parameters_are_shown_between_forward_and_backward_too(case: tuple[Any, ...]) -> None:
    """Where torch's own gathering refuses, or sets free what backward needs."""
    for (gradients, before, _), (seen, _, shown) in IN_BETWEEN.of(*case):
        assert_equal(shown, before)
        assert_equal(seen, gradients)
