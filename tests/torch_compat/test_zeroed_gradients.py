"""``zero_grad`` between a forward and its backward: FSDP1's losses and parameters, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.runtime.cases import Cases, assert_equal
from tests.torch_compat import zeroed_gradients_bodies as zeroed


# The case, what is zeroed, whether FSDP1 had flat parameters, whether a microbatch waits for its reduction.
CASES = [
    *(("blocks", how, False, False) for how in zeroed.WAYS),
    *(("blocks", how, True, False) for how in ("nothing", "the model", "to zeros", "a module around it")),
    ("NO_SHARD", "the model", False, False),
    # With `use_orig_params` FSDP1 left them there, because it showed views of what it had gathered.
    ("SHARD_GRAD_OP", "the model", True, False),
    ("SHARD_GRAD_OP", "nothing", False, False),
    ("bf16", "the model", False, False),
    ("bf16, reduced in fp32", "to zeros", True, False),
    ("blocks", "the model", True, True),
    ("bf16, reduced in fp32", "the model", True, True),
]
ZEROED = Cases(zeroed.zero_between, CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_zeroed_between_forward_and_backward_as_under_fsdp1(case: tuple[Any, ...]) -> None:
    for (losses, params), (found_losses, found_params) in ZEROED.of(*case):
        assert found_losses == losses
        assert_equal(found_params, params)


def test_without_it_gradients_are_added_up() -> None:
    """Or else the cases above would not tell."""
    for kind in range(2):
        kept, dropped = (ZEROED.of("blocks", how, False, False)[0][kind] for how in ("nothing", "the model"))
        assert kept[0] != dropped[0]


def test_the_gradients_of_other_parameters_stay() -> None:
    for found in run_ranks(zeroed.gathered_by_hand):
        head = found.pop("of the head")
        assert found == {"reduced": True, "whole": True, "another's": True}
        assert head == {"head.norm.weight", "head.norm.bias", "head.out.weight", "head.out.bias"}
