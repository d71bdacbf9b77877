"""Checkpointing changes memory and nothing else: FSDP1 with it, and FSDP2 without it, give the same bits."""

from __future__ import annotations

import re

import pytest

from tests.ranks import run_ranks
from tests.sharding import activation_checkpointing_bodies as bodies
from tests.sharding.test_parity import assert_same


STEPS = 3
# A layer that is checkpointed runs once more in each step; where only its parts are, the layer itself is not.
RUNS = {
    "activations on the CPU": STEPS,
    "checkpointed parts of a unit": STEPS,
}
KEEPS_WITHIN = {"checkpointed parts of a unit"}
INPUT_STAYS = {"inputs on the CPU": False, "activations on the CPU": False}


@pytest.fixture(scope="module")
def trained() -> list[dict[str, tuple[bodies.Trained, ...]]]:
    return run_ranks(bodies.train_all, timeout=400)


@pytest.mark.parametrize("name", sorted(bodies.CASES))
def test_training_is_the_same_with_and_without_it_and_under_fsdp1(
    name: str, trained: list[dict[str, tuple[bodies.Trained, ...]]]
) -> None:
    for reference, plain, found in (runs[name] for runs in trained):
        for other in (reference, plain):
            assert found.run.losses == other.run.losses
            assert_same(found.run.parameters, other.run.parameters)
            assert_same(found.run.gradients, other.run.gradients)
        assert plain.calls == [STEPS, STEPS]
        assert found.calls == [RUNS.get(name, 2 * STEPS)] * 2
        assert plain.within_kept
        assert plain.inputs_kept
        assert found.within_kept == (name in KEEPS_WITHIN)
        if not bodies.CASES[name].low:  # the input was cast: the one that the layer saw is another
            assert found.inputs_kept == INPUT_STAYS.get(name, True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_torch_has_wrapped_before_is_sharded_as_fsdp1_shards_it_and_not_wrapped_twice(
    reentrant: bool,
) -> None:
    inner = [f"blocks.{index}._checkpoint_wrapped_module" for index in range(2)]
    for found in run_ranks(bodies.wrapped_before, reentrant):
        assert found["units"] == [["", *inner], ["", *inner]]
        assert found["planned"] == ["", *inner]
        assert found["losses"][0] == found["losses"][1]
        assert found["parameters"]
        assert found["calls"] == [[2 * STEPS] * 2] * 2
        assert found["keys"] == []


def test_no_name_changes() -> None:
    for found in run_ranks(bodies.names_after):
        assert found["attributes"] == ["forward"]
        assert found["state_dict"]
        assert found["parameters"]
        assert found["modules"]
        assert found["class"]


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_checkpoint_then_compile_then_shard_gives_one_graph_and_the_same_losses(how: str) -> None:
    for eager, compiled, graphs in run_ranks(bodies.compiled_in_between, how, timeout=400):
        assert compiled == eager
        assert graphs == 1


@pytest.mark.parametrize(
    ("name", "by"), [("after fully_shard", "fully_shard"), ("after FSDP1", "FullyShardedDataParallel")]
)
def test_after_sharding_is_too_late(name: str, by: str) -> None:
    for kind, text, untouched in run_ranks(bodies.wrong_order, name):
        assert kind == "ModelError"
        assert re.search(f"sharded by {by} already.*activation checkpointing, torch.compile, prepare", text)
        assert untouched


def test_prepare_does_both_or_neither() -> None:
    for text, untouched in run_ranks(bodies.refused_in_prepare):
        assert "means the layers of the `auto_wrap_policy`, and there is none" in text
        assert "No module of class `torch.nn.modules.conv.Conv2d` is in the model" in text
        assert untouched


def test_a_check_by_the_class_finds_no_unit_behind_sharding_as_fm324_says() -> None:
    for found in run_ranks(bodies.chosen_after_sharding):
        assert found == {
            "isinstance": (2, 2),
            "the class": (2, 0),
            "its name": (2, 0),
            "a part of its name": (2, 2),
            "the start of its name": (2, 0),
        }
