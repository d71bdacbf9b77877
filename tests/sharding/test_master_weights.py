"""What FM423 says of master weights that are swapped by ``p.data = ...`` trains as FSDP1 did."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.sharding import master_weights_bodies as bodies


def test_with_one_backward_a_step_no_bit_differs() -> None:
    assert run_ranks(bodies.as_said, 1) == run_ranks(bodies.under_fsdp1, 1)


def test_several_are_added_up_in_float32() -> None:
    """FSDP1 added them up in the dtype of the weights, so that the second step has other ones."""
    expected, found = run_ranks(bodies.under_fsdp1, 2), run_ranks(bodies.as_said, 2)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert found != expected
    assert found == [pytest.approx(each, rel=1e-2) for each in expected]


def test_inputs_stay_as_they_were() -> None:
    """FSDP1 had no mixed precision here, and cast no inputs: the default would."""
    assert run_ranks(bodies.with_inputs_cast, 1) != run_ranks(bodies.under_fsdp1, 1)
