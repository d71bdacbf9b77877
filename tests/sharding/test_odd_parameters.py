"""Parameters that are not contiguous or empty, and losses that hold gradients, train as under FSDP1."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding import odd_parameters_bodies as odd_parameters


# Parameters that are not contiguous FSDP1 trains otherwise under NO_SHARD than under its other strategies.
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.parametrize("name", odd_parameters.MODELS)
def test_parameters_of_every_layout_train_as_under_fsdp1(name: str, strategy: str) -> None:
    for found in run_ranks(odd_parameters.train, name, strategy):
        (expected, parameters), (losses, others) = found["FSDP1"], found["prepared"]
        # What a project puts on parameters is kept: FSDP1 kept the parameters themselves.
        assert found["numbers"][1] == found["numbers"][0] == set(range(len(parameters)))
        assert ("FM109" in found["codes"]) == (name == "not contiguous")
        if name == "empty":
            assert losses == expected
            assert all(map(torch.equal, others, parameters))
        assert losses == pytest.approx(expected, rel=1e-5)
        for one, other in zip(parameters, others, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_gradient_penalty_trains_as_without_sharding(strategy: str, units: bool, alone: bool) -> None:
    for expected, losses, freed in run_ranks(odd_parameters.penalise, strategy, units, alone):
        assert losses == pytest.approx(expected, rel=1e-6)
        assert freed
