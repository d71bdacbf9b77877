"""Whole parameters, state dicts and copies of weights, held against FSDP1's own."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.models import Net
from tests.rank_bodies import runtime_state, whole_parameters
from tests.ranks import run_ranks
from tests.runtime.test_runtime import Cases, assert_equal


if TYPE_CHECKING:
    from pathlib import Path


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


WHOLE = Cases(runtime_state.full_states, [("blocks",), ("NO_SHARD",), ("bf16 with buffers",)])


@pytest.mark.parametrize("case", ["blocks", "NO_SHARD", "bf16 with buffers"])
def test_the_full_state_is_that_of_fsdp1(case: str) -> None:
    ranks = WHOLE.of(case)
    assert ranks[1]["ours"] == {}
    expected, found = ranks[0]["FSDP1"], ranks[0]["ours"]
    assert_equal(found["model"], expected["model"])
    assert list(found["model"]) == list(expected["model"])
    assert all(type(value) is torch.Tensor for value in found["model"].values())
    assert found["optimizer"].keys() == expected["optimizer"].keys()
    assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    for name, own in expected["optimizer"]["state"].items():
        assert_equal(found["optimizer"]["state"][name], own)
    (group,), (expected_group,) = found["optimizer"]["param_groups"], expected["optimizer"]["param_groups"]
    assert group == expected_group


@pytest.mark.slow
def test_the_full_state_is_that_of_fsdp1_at_two_by_two_ranks() -> None:
    ranks = run_ranks(runtime_state.full_states, "HYBRID_SHARD", world_size=4, timeout=400)
    assert [rank["ours"] for rank in ranks[1:]] == [{}] * 3
    assert_equal(ranks[0]["ours"]["model"], ranks[0]["FSDP1"]["model"])


def test_a_full_state_is_loaded_and_training_goes_on() -> None:
    for rank, found in enumerate(run_ranks(runtime_state.load_full_state)):
        assert_equal(found["loaded"], found["expected"])
        assert found["lr"] == 0.01
        assert found["kept"] == ([] if rank else ["param_groups", "state"])
        assert found["untouched"]
        assert found["in part"] == 4.0
        messages = (
            "it has no part `model`",
            "it has no part `optimizer`",
            "`head.out.weight` is missing; .*`out.weight` is not in the model",
            r"`embed.weight` has the shape \[14, 6\]; expected \[13, 6\]",
            r"its parameter groups, of \[17\] parameters, are not the optimizer's, of \[1, 1\]",
            r"its parameters are numbered, as `optimizer\.state_dict\(\)` numbers them; expected names",
            "has another structure than `full_state_dict` gives it.*TypeError.*Nothing was loaded",
        )
        for (error, text), message in zip(found["refused"], messages, strict=True):
            assert error == "CheckpointMismatchError"
            assert re.search(message, text), text


def test_what_was_never_stepped_has_no_state_after_loading_either() -> None:
    for rank, found in enumerate(run_ranks(runtime_state.load_what_was_never_stepped)):
        for key, names in (("fresh", []), ("holes", ["embed.weight", "blocks.0.norm.weight"])):
            expected = None if rank else dict.fromkeys(names, 3)
            assert found[key]["saved"] == found[key]["loaded"] == expected
            assert found[key]["gradients"]
            assert found[key]["steps"] == ([] if rank else [1.0] * len(names))
        assert found["stranger"][0] == "CheckpointMismatchError"
        assert "`offset` has a state, and is not in the optimizer" in found["stranger"][1]


def test_one_whole_tensor_is_alive_at_a_time_where_none_is_wanted() -> None:
    (_, gathered, params), (most, other_gathered, _) = run_ranks(runtime_state.memory_of_full_state)
    # Adam has two moments for each parameter; the tied one is gathered once.
    assert gathered == other_gathered == 3 * params
    assert most == 1


def test_taking_a_state_changes_nothing_and_shares_no_memory() -> None:
    for found in run_ranks(runtime_state.side_effects_of_state):
        assert found["fresh"] == {}
        assert found["untouched"] == 0
        assert found["shared"] == []
        assert found["shared moments"] == 0
        assert found["buffer"] == pytest.approx(0.1)
        assert found["stranger"][0] == "OptimizerError"
        assert (
            "Optimizer 0 (SGD) has 17 parameters in group 0 that are not the model's" in found["stranger"][1]
        )
        assert found["two"] == [(0.1, ["embed.weight"]), (0.2, ["blocks.0.norm.weight"])]


def test_names_are_the_models_own_whatever_wraps_it() -> None:
    for model, optimizer, expected in run_ranks(runtime_state.names_with_wrappers):
        assert model == expected
        assert optimizer == [name for name in expected if "scale" not in name and "offset" not in name]


def test_a_sharded_state_of_fsdp1_loads_into_ours(tmp_path: Path) -> None:
    for found in run_ranks(runtime_state.sharded_states, str(tmp_path / "checkpoint")):
        assert found["names"] == found["expected names"]
        assert_equal(found["parameters"], found["expected"])
        assert_equal(found["moments"], found["expected moments"])


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


@pytest.mark.slow
def test_parameters_of_two_parallelisms_are_shown_written_and_clipped() -> None:
    for found in run_ranks(runtime_state.with_tensor_parallelism, world_size=4, timeout=400):
        plain, sharded = found["plain"], found["sharded"]
        assert found["placements"] > 1
        assert sharded["norms"] == pytest.approx(plain["norms"], rel=1e-6)
        assert_equal(sharded["shown"], plain["shown"])
        torch.testing.assert_close(sharded["gradients"], plain["gradients"])
        assert_equal(sharded["state"], plain["state"])
        assert found["loaded"] == []
