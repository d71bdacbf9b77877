"""After a forward that no backward follows, a model shows its shards, and what is written to them counts."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding import after_evaluation_bodies as bodies


STRATEGIES = pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])


@STRATEGIES
def test_shards_are_shown_unless_the_script_gathered_them(strategy: str) -> None:
    for found in run_ranks(bodies.shown, strategy):
        assert found.pop("unsharded by the script") == {"whole"}
        assert set(map(frozenset, found.values())) == {frozenset({"shards"})}, found


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_fsdp1_showed_them_too(strategy: str) -> None:
    assert all(run_ranks(bodies.shown_by_fsdp1, strategy))


@STRATEGIES
def test_a_teacher_is_averaged(strategy: str) -> None:
    """FSDP1's teacher computed with the root's weights of the first step, for good."""
    for expected, found in run_ranks(bodies.taught, strategy):
        assert found == pytest.approx(expected, rel=1e-5)


@STRATEGIES
def test_what_is_copied_into_an_evaluated_model_stays(strategy: str) -> None:
    for student, teacher, is_seen in run_ranks(bodies.copied, strategy):
        assert is_seen
        assert student.keys() == teacher.keys()
        assert all(torch.equal(student[name], teacher[name]) for name in student)


@STRATEGIES
def test_a_step_after_an_evaluation_is_computed_with(strategy: str) -> None:
    for expected, found in run_ranks(bodies.evaluated_before_the_step, strategy):
        assert found == pytest.approx(expected, rel=1e-5)


@STRATEGIES
def test_an_evaluation_between_a_forward_and_its_backward_changes_nothing(strategy: str) -> None:
    for expected, found in run_ranks(bodies.evaluated_before_the_backward, strategy):
        assert found.keys() == expected.keys()
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-6)


@STRATEGIES
def test_a_parameter_that_a_forward_gives_stays(strategy: str) -> None:
    for found, expected in run_ranks(bodies.given, strategy):
        assert torch.equal(found, expected)
