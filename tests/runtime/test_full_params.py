"""Whole parameters and what is written in them, held against FSDP1's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models import Net
from tests.ranks import run_ranks
from tests.runtime import whole_parameters_bodies as whole_parameters
from tests.runtime.cases import Cases, assert_equal


SHOWN: list[tuple[str, dict[str, Any]]] = [
    ("blocks", {}),
    ("bf16", {}),
    ("NO_SHARD", {"with_grads": True}),
    ("blocks", {"with_grads": True, "writeback": False}),
    ("blocks", {"recurse": False}),
    ("blocks", {"rank0_only": True, "writeback": False}),
    ("blocks", {"rank0_only": True, "writeback": False, "offload_to_cpu": True}),
]
SEEN = Cases(whole_parameters.what_is_seen, list(SHOWN))


@pytest.mark.parametrize(("case", "arguments"), SHOWN)
def test_the_context_shows_what_fsdp1_showed(case: str, arguments: dict[str, Any]) -> None:
    for rank, (expected, seen) in enumerate(SEEN.of(case, arguments)):
        assert seen["afterwards"]
        found = {name: pair for name, pair in seen.items() if name != "afterwards"}
        if rank == 1 and arguments.get("rank0_only"):
            assert found == {}
            continue
        # FSDP1's shards are flat, so that a whole one may look like a whole parameter of one dimension.
        assert found.keys() <= expected.keys()
        assert set(expected) - set(found) <= {name for name in expected if expected[name][0].ndim == 1}
        for name, (value, grad) in found.items():
            assert torch.equal(value, expected[name][0])
            assert (grad is None) == (not arguments.get("with_grads"))
            assert grad is None or torch.equal(grad, expected[name][1])
        if arguments.get("recurse") is False:
            assert {name for name in found if name.startswith("blocks.")} == set()
            assert "embed.weight" in found
        else:
            assert found.keys() == dict(Net().named_parameters()).keys()


@pytest.mark.parametrize("case", ["blocks", "NO_SHARD"])
def test_what_is_written_is_kept_as_under_fsdp1(case: str) -> None:
    for (losses, grads, params), (found_losses, found_grads, found_params) in run_ranks(
        whole_parameters.write_and_train, case, case != "NO_SHARD"
    ):
        assert_equal(found_grads, grads)
        assert found_losses == losses
        assert_equal(found_params, params)


@pytest.mark.slow
def test_what_is_written_is_kept_at_two_by_two_ranks() -> None:
    for expected, found in run_ranks(
        whole_parameters.write_and_train, "HYBRID_SHARD", world_size=4, timeout=400
    ):
        assert found[0] == expected[0]
        assert_equal(found[2], expected[2])


@pytest.mark.slow
def test_the_first_rank_of_each_shard_group_sees_whole_parameters_as_under_fsdp1() -> None:
    found = run_ranks(whole_parameters.who_sees, "HYBRID_SHARD", world_size=4, timeout=400)
    assert found == [[True, True], [False, False]] * 2


def test_every_replica_sees_whole_parameters_as_under_fsdp1() -> None:
    assert run_ranks(whole_parameters.who_sees, "NO_SHARD") == [[True, True]] * 2


def test_what_is_frozen_in_the_context_stays_so_as_under_fsdp1() -> None:
    """The parameters of the context are other objects: what was set on them was lost, and all was trained."""
    for expected, found in run_ranks(whole_parameters.freeze_and_train):
        assert found[0] == expected[0]
        assert {*expected[0]} == {True, False}
        assert_equal(found[1], expected[1])
        assert found[2] == expected[2]


def test_what_is_written_after_an_evaluation_is_computed_with() -> None:
    assert run_ranks(whole_parameters.write_after_evaluation) == [(0.0, 0.0)] * 2


def test_apply_in_the_context_is_what_fsdp1_did() -> None:
    for expected, found in run_ranks(whole_parameters.apply_function):
        assert_equal(found, expected)


def test_ties_and_replaced_parameters() -> None:
    for found in run_ranks(whole_parameters.summon_ties):
        assert found["tied inside"]
        assert found["tied after"]
        assert found["written"] == [2.0]
        assert found["replaced"] == [3.0]
        assert found["sharded"]
        for key, text in (
            ("untied", "`embed.weight` is tied, and has become 2 parameters"),
            ("shape", "`blocks.0.norm.weight` has the shape [7]; expected [6]"),
        ):
            assert found[key][0] == "ModelError"
            assert text in found[key][1]


def test_what_cannot_be_summoned_is_an_error() -> None:
    for found in run_ranks(whole_parameters.summon_wrongly):
        for key, text in (
            ("nested", "in the context of another one"),
            ("forward", "The forward of a FSDPNet was called in `summon_full_params`"),
            ("forward of a unit", "The forward of a FSDPBlock was called"),
            ("in a forward", "in the middle of a forward or backward: unit `the root`"),
        ):
            assert found[key][0] == "ModelStateError"
            assert text in found[key][1]
        refused = {key: value for key, value in found.items() if "[" in key}
        assert set(refused.values()) == {"UnsupportedFeatureError", "NotImplementedError"}
        assert len(refused) == 4
        assert found["usable"]
        assert found["head"] == (2, 13)
