"""What FSDP1 does where a batch uses a part of a unit: its gradients, zeros among them, bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding.test_parity import assert_same
from tests.torch_compat import pending_gradients_bodies as unused


CASES = [
    (routing, loop, count)
    for routing, (loop, count) in itertools.product(
        unused.ROUTING, [("no_sync", 1), ("no_sync", 2), ("microbatches", 2), ("agreeing", 2)]
    )
]


def test_a_unit_of_which_a_part_is_used_trains_as_under_fsdp1() -> None:
    """The lone parameter decays; a skipped unit does not; ranks may use different parts."""
    for runs in run_ranks(unused.run_both, CASES, timeout=400):
        for case, (reference, found) in zip(CASES, runs, strict=True):
            assert found.losses == reference.losses, case
            assert "0 first.lone" in reference.gradients
            assert case[2] > 1 or "1 second.lone" not in reference.gradients
            assert_same(found.gradients, reference.gradients)
            assert_same(found.parameters, reference.parameters)


def test_microbatches_that_use_different_parts_are_added_up_in_the_reduce_dtype() -> None:
    """Of a part that the last one leaves out the sum is float32 already, of the others bfloat16."""
    for ((reference, found),) in run_ranks(
        unused.run_both, [("the same on all ranks", "no_sync", 2)], torch.float32
    ):
        assert found.losses == pytest.approx(reference.losses, rel=2e-2)
        assert found.gradients.keys() == reference.gradients.keys()
