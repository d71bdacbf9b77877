"""Scripts that go through parameters after an evaluation: averages of weights, target networks, teachers."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from tests.torch_compat import evaluations_bodies as evaluating


@pytest.mark.parametrize("update", ["soft", "hard", "inference"])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_a_model_that_follows_another_is_that_of_one_process(strategy: str, update: str) -> None:
    """FSDP1 went on computing with a root from before: what was written is computed with here, and saved."""
    for (losses, state), (expected, wanted) in run_ranks(evaluating.compare, strategy, update):
        assert losses == pytest.approx(expected, abs=1e-6)
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "evaluated", "with_gradients"),
    [
        ("FULL_SHARD", [True, True], [False, True]),
        ("NO_SHARD", [True, True], [False, False]),
        # What is kept for the next forward is not gathered anew for each: a generation is many.
        ("SHARD_GRAD_OP", [False, False], [False, False]),
    ],
)
def test_what_a_forward_leaves(strategy: str, evaluated: list[bool], with_gradients: list[bool]) -> None:
    for found in run_ranks(evaluating.shown, strategy):
        assert found["evaluated"] == evaluated
        assert found["with gradients"] == with_gradients
        assert found["trained"] == [True, True]
        assert all(found["has gradients"])


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP"])
def test_an_evaluation_between_a_forward_and_its_backward(strategy: str) -> None:
    for found, expected in run_ranks(evaluating.around, strategy):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


def test_a_parameter_that_a_forward_gives_stays() -> None:
    for found, expected in run_ranks(evaluating.given):
        torch.testing.assert_close(found, expected)
