"""FSDP1 is the reference: the same arguments give the same losses, gradients and parameters, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.rank_bodies import parity
from tests.ranks import run_ranks


HYBRID = {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD of groups"}


def assert_same(found: parity.Tensors, expected: parity.Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("case", sorted(set(parity.CASES) - HYBRID))
def test_training_is_the_same_at_two_ranks(case: str) -> None:
    for reference, found in run_ranks(parity.run_both, case):
        assert found.losses == reference.losses
        assert_same(found.parameters, reference.parameters)
        if reference.gradients:
            assert_same(found.gradients, reference.gradients)
        assert_same(found.buffers, reference.buffers)


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(HYBRID))
def test_hybrid_training_is_the_same_at_two_by_two_ranks(case: str) -> None:
    for reference, found in run_ranks(parity.run_both, case, world_size=4, timeout=400):
        assert found.losses == reference.losses
        assert_same(found.parameters, reference.parameters)
        assert_same(found.gradients, reference.gradients)


def test_sync_module_states_gives_every_rank_the_model_of_rank_0() -> None:
    for reference, found in run_ranks(parity.run_synchronised, "blocks"):
        assert found.losses == reference.losses
        assert_same(found.parameters, reference.parameters)
        assert_same(found.buffers, reference.buffers)


def test_offloading_to_the_cpu_changes_no_value() -> None:
    for reference, found, devices in run_ranks(parity.run_offloaded, "blocks"):
        assert found.losses == reference.losses
        assert_same(found.parameters, reference.parameters)
        assert_same(found.gradients, reference.gradients)
        assert devices == {"cpu"}
