"""State dicts, whole and in shards, held against FSDP1's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from fsdp_migrate.errors import OptimizerError
from fsdp_migrate.runtime import full_optimizer_state_dict, full_state_dict, sharded_state_dict
from tests.rank_bodies import runtime_state
from tests.ranks import run_ranks
from tests.runtime.cases import Cases, assert_equal


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    # FSDP1 gave the model's to the first of each shard group; what saves there is said (FM308).
    assert [bool(rank["FSDP1"]["model"]) for rank in ranks] == [True, False] * 2
    assert [bool(rank["FSDP1"]["optimizer"]) for rank in ranks] == [True, False, False, False]


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


def test_a_state_that_every_rank_has_is_loaded_as_a_plain_module_loads_it() -> None:
    for found in run_ranks(runtime_state.load_state_of_every_rank):
        assert_equal(*found.pop("meta"))
        assert "Missing key(s) in state_dict: `head.out.weight`" in found.pop("meta, missing")
        assert len(found) == 8
        for name, ((expected, values, _), (said, own, is_left_alone)) in found.items():
            assert said == expected, name
            assert is_left_alone, name
            # torch copies what fits before it raises, in an order of its own.
            if "Error" not in said:
                assert_equal(own, values)


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


@pytest.mark.parametrize("gather", [full_state_dict, full_optimizer_state_dict])
def test_state_of_few_bits_has_no_whole_form(gather: Callable[..., Any]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.weight]["exp_avg"] = TwoTensor(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(OptimizerError, match=r"AdamW keeps `exp_avg` packed \(TwoTensor\)"):
        gather(model, optimizer)
    assert "exp_avg" in sharded_state_dict(model, optimizer)["optimizer"]["state"]["weight"]


def test_a_copy_on_the_cpu_stays_what_it_was() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for first, then in ((True, False), (False, True)):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state = sharded_state_dict(model, optimizer, cpu_offload=first)
        kept = state["optimizer"]["state"]["weight"]["exp_avg"], state["model"]["weight"]
        before = [each.clone() for each in kept]
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert [not torch.equal(*each) for each in zip(kept, before, strict=True)] == [then, then]


def test_names_are_the_models_own_whatever_wraps_it() -> None:
    for model, optimizer, expected in run_ranks(runtime_state.names_with_wrappers):
        assert model == expected
        assert optimizer == [name for name in expected if "scale" not in name and "offset" not in name]


def test_a_sharded_state_of_fsdp1_loads_into_ours(tmp_path: Path) -> None:
    for found in run_ranks(runtime_state.sharded_states, str(tmp_path / "checkpoint")):
        assert found["names"] == found["expected names"]
        assert_equal(found["parameters"], found["expected"])
        assert_equal(found["moments"], found["expected moments"])


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
