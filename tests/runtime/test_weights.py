"""Averages and copies of weights."""

from __future__ import annotations

import math

import torch

from tests.models import Net
from tests.rank_bodies import runtime_state
from tests.ranks import run_ranks
from tests.runtime.cases import assert_equal


def test_averages_of_shards_are_the_averages_of_whole_weights() -> None:
    sizes = 0
    for rank, found in enumerate(run_ranks(runtime_state.average_weights)):
        assert_equal(found["average"], found["expected"])
        assert torch.equal(*found["inside"])
        assert found["differs"]
        assert found["outside"]
        assert_equal(found["own"][1], found["own"][0])
        if rank == 0:
            assert_equal(found["saved"], found["expected"])
        sizes += found["local"]
    assert sizes == sum(math.prod(param.shape) for param in Net().parameters())


def test_copies_fit_or_are_refused() -> None:
    for found in run_ranks(runtime_state.copy_weights):
        assert found["dtypes"] == {"torch.float32"}
        assert found["tied"] == ["embed.weight"]
        assert found["buffers"] == ["offset"]
        assert found["alike"]
        assert found["apart"]
        assert not found["requires grad"]
        assert found["decay"] == ("ConfigError", "`decay` is 1.5; expected a number between 0 and 1.")
        assert found["stranger"][0] == found["plain"][0] == "ModelError"
        assert "`nothing` is not in the model" in found["stranger"][1]
        assert "`embed.weight` is [13, 6], not sharded and in the model [13, 6] placed" in found["plain"][1]
        assert found["in bfloat16"] == "torch.bfloat16"
        assert found["counter"] == 5


def test_what_is_trained_with_other_weights_stays_in_them() -> None:
    assert run_ranks(runtime_state.train_two_copies) == [0.0, 0.0]
