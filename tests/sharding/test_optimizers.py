"""What steps in backward goes on with the sharded parameters."""

from __future__ import annotations

import pytest

from fsdp_migrate.torch_compat import fsdp2
from tests.ranks import run_ranks
from tests.sharding import steps_in_backward_bodies as steps_in_backward


@pytest.mark.parametrize("kind", steps_in_backward.OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_optimizers_applied_in_backward_train_as_under_fsdp1(kind: str, precision: str) -> None:
    for found in run_ranks(steps_in_backward.apply_in_backward, kind, precision):
        for way, (expected, losses) in found.items():
            assert len(set(losses)) == 4
            if precision == "fp32" or way != "accumulated":  # FM022
                assert losses == expected, way


@pytest.mark.parametrize("kind", steps_in_backward.OPTIMIZERS)
def test_hooks_that_step_optimizers_train(kind: str) -> None:
    for found in run_ranks(steps_in_backward.step_in_hooks, kind):
        for way, (expected, losses, findings) in found.items():
            assert losses == expected, way
            assert findings == ["FM111"]


def test_a_hook_that_uses_an_optimizer_and_that_nothing_would_call_is_an_error() -> None:
    for error, text in run_ranks(steps_in_backward.hook_of_a_gradient, "optimizer"):
        assert error == "OptimizerError"
        assert "`head.out.weight` has the hook `hook_of_a_gradient" in text
        assert "uses an optimizer" in text


def test_other_hooks_of_gradients_are_not_called_as_under_fsdp1() -> None:
    """As `wandb.watch` registers them."""
    for codes, losses, expected in run_ranks(steps_in_backward.hooks_that_nothing_calls):
        assert codes == ["FM116"]
        assert losses == expected


def test_a_hook_of_an_ignored_parameter_is_left_alone() -> None:
    if not fsdp2.HAS_IGNORED_PARAMS:
        pytest.skip("torch 2.6's fully_shard cannot ignore parameters")
    assert run_ranks(steps_in_backward.hook_of_a_gradient, "ignored") == [("no error", "")] * 2
