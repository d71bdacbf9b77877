"""Accumulation, methods and gradient scaling, held against FSDP1's own."""

from __future__ import annotations

import re

import pytest
import torch

from tests.rank_bodies import runtime
from tests.ranks import run_ranks
from tests.runtime.cases import Cases, assert_equal


STRATEGIES = ["blocks", "SHARD_GRAD_OP", "NO_SHARD", "bf16"]
ACCUMULATED = Cases(runtime.accumulate, [(case,) for case in (*STRATEGIES, "bf16, reduced in fp32")])


@pytest.mark.parametrize("case", STRATEGIES)
def test_accumulating_without_reduction_is_as_under_fsdp1(case: str) -> None:
    for (losses, grads, params), (found_losses, found_grads, found_params) in ACCUMULATED.of(case):
        assert found_losses == losses
        assert_equal(found_grads, grads)
        assert_equal(found_params, params)


THROWN_AWAY = Cases(
    runtime.throw_away,
    [*((case, "optimizer") for case in STRATEGIES), ("blocks", "model"), ("blocks", "zeros")],
)


@pytest.mark.parametrize("case", THROWN_AWAY.cases)
def test_what_was_not_reduced_is_thrown_away_as_under_fsdp1(case: tuple[str, str]) -> None:
    for (losses, grads, params), (found_losses, found_grads, found_params) in THROWN_AWAY.of(*case):
        assert found_losses == losses
        assert_equal(found_grads, grads)
        assert_equal(found_params, params)


@pytest.mark.slow
def test_accumulating_is_the_same_at_two_by_two_ranks() -> None:
    for expected, found in run_ranks(runtime.accumulate, "HYBRID_SHARD", world_size=4, timeout=400):
        assert found[0] == expected[0]
        assert_equal(found[1], expected[1])
        assert_equal(found[2], expected[2])


def test_with_a_wider_reduction_gradients_accumulate_in_the_wider_dtype() -> None:
    for expected, found in ACCUMULATED.of("bf16, reduced in fp32"):
        difference = max((found[2][name] - expected[2][name]).abs().max().item() for name in expected[2])
        # TORCH_FACTS measured 1.0e-2 over six steps; 0 would mean that the documented difference is gone.
        assert 0 < difference < 1.0e-2


def test_no_sync_puts_back_what_each_unit_had() -> None:
    for found in run_ranks(runtime.synchronisation_flags):
        before = [(True, True), (False, False), (True, False)]
        assert found["before"] == found["after"] == found["after an error"] == before
        assert found["inner"] == found["outer"] == [(False, False)] * 3
        assert found["reduced"] == []
        assert found["no unit"][0] == "ModelError"
        assert (
            "`no_sync` was called with a Net in which fully_shard has sharded nothing" in found["no unit"][1]
        )


def test_registered_methods_find_whole_parameters() -> None:
    for found in run_ranks(runtime.call_methods):
        encoded, spoken, grads, _ = found["plain"]
        found_encoded, found_spoken, found_grads, name = found["prepared"]
        assert torch.equal(found_encoded, encoded)
        assert torch.equal(found_spoken, spoken)
        # The root unit holds the head too, which no method used: zeros, as FSDP1 had them.
        torch.testing.assert_close({key: found_grads[key] for key in grads}, grads)
        assert not any(grad.any() for key, grad in found_grads.items() if key not in grads)
        assert name == "encode"
        assert found["sharded"] == 18, "a parameter stayed whole"
        assert found["unregistered"] != "works", "torch needs no registering any more"


def test_methods_that_cannot_be_registered_are_errors() -> None:
    messages = [
        "`speak` is no method of the .*Speaker: .*Speaker has no `speak`",
        "`pol.score` is no method of the .*Speaker: it has no module `pol`",
        "`register_forward_methods` was called with a Net in which fully_shard has sharded nothing",
        "No unit of the model holds `keys`: fully_shard was called below it only",
    ]
    for found in run_ranks(runtime.register_nothing):
        for (error, text), message in zip(found, messages, strict=True):
            assert error == "ModelError"
            assert re.search(message, text), text
