"""The optimizer's state alone, held against what FSDP1's own functions give and take."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.runtime import optim_state_dict_to_load
from tests.ranks import run_ranks
from tests.runtime import optimizer_states_bodies as optimizer_states
from tests.runtime.cases import Cases, assert_equal


if TYPE_CHECKING:
    from pathlib import Path


GIVEN = [("blocks", False), ("blocks", True), ("NO_SHARD", False)]
STATES = Cases(optimizer_states.states, list(GIVEN))
TAKEN = [("blocks", "to load"), ("blocks", "scatter"), ("blocks", "sharded"), ("SHARD_GRAD_OP", "to load")]
LOADED = Cases(optimizer_states.load, list(TAKEN))


@pytest.mark.parametrize(("case", "rank0_only"), GIVEN)
def test_the_state_is_that_of_fsdp1(case: str, rank0_only: bool) -> None:
    for rank, found in enumerate(STATES.of(case, rank0_only)):
        expected, ours = found["FSDP1"], found["ours"]
        if rank0_only and rank:
            assert (expected, ours) == ({}, {})
            continue
        assert ours["state"].keys() == expected["state"].keys()
        for name, own in expected["state"].items():
            assert_equal(ours["state"][name], own)
        assert [sorted(group["params"]) for group in ours["param_groups"]] == [
            sorted(group["params"]) for group in expected["param_groups"]
        ]
        assert [group["lr"] for group in ours["param_groups"]] == [0.03, 0.01, 0.005]
        assert [group["weight_decay"] for group in ours["param_groups"]] == [0.01, 0.0, 0.01]


@pytest.mark.slow
def test_rank_0_of_all_has_the_state_of_two_by_two_ranks_as_under_fsdp1() -> None:
    found = run_ranks(optimizer_states.who_has_the_state, world_size=4, timeout=400)
    assert found == [[True, True], *[[False, False]] * 3]


@pytest.mark.slow
def test_the_first_of_the_models_ranks_has_the_state_whatever_group_stands_for_the_world() -> None:
    found = run_ranks(optimizer_states.in_the_place_of_the_world, world_size=4, timeout=400)
    # Rank 1 has it at once, where FSDP1 needed the other group for that.
    assert found == [[[True, True]] * 2, [[False, True], [True, True]], *[[[False, False]] * 2] * 2]


@pytest.mark.parametrize(("case", "how"), TAKEN)
def test_a_state_is_loaded_as_fsdp1_loaded_it(case: str, how: str) -> None:
    for found in LOADED.of(case, how):
        assert_equal(found["ours"], found["FSDP1"])
        assert found["lr"] == [[0.03, 0.01, 0.005]] * 2
        assert found["untouched"], "steps have changed the state that was given"


def test_files_of_ranks_are_resumed_from_as_is_said_of_them(tmp_path: Path) -> None:
    """New ones, old ones that the old script loads once, and new ones with the model in them."""
    for found in run_ranks(optimizer_states.of_files_of_ranks, str(tmp_path)):
        for expected, ours in found:
            assert_equal(ours, expected)


def test_a_state_that_does_not_fit_is_an_error() -> None:
    for errors in run_ranks(optimizer_states.load_wrongly):
        assert {name for name, _ in errors} == {"CheckpointMismatchError"}
        for (_, message), text in zip(
            errors,
            (
                "has no `param_groups`",
                "has no group for `",
                "has `none.such` and 1 more, which the optimizer does not hold",
                "has no group for `",
            ),
            strict=True,
        ):
            assert text in message


def test_without_an_optimizer_parameters_are_numbered_in_order() -> None:
    assert run_ranks(optimizer_states.without_optimizer) == [True, True]


def test_without_an_optimizer_the_saved_groups_are_kept() -> None:
    """FSDP1's scatter_full_optim_state_dict did; what is frozen is in none of them."""
    assert run_ranks(optimizer_states.groups_without_optimizer) == [True, True]


def test_what_wraps_an_optimizer_is_taken_for_one() -> None:
    for bare, found in run_ranks(optimizer_states.wrapped):
        assert found["state"].keys() == bare["state"].keys()
        for name, own in bare["state"].items():
            assert_equal(found["state"][name], own)


MODEL = torch.nn.Linear(3, 2)
HEALTHY = {"exp_avg": torch.tensor([[1.0, 2.0, 3.0]] * 2), "exp_avg_sq": torch.tensor([[1.0, 4.0, 9.0]] * 2)}
SAME = {name: HEALTHY["exp_avg_sq"].clone() for name in HEALTHY}


def _loaded(own: dict[str, torch.Tensor]) -> list[str]:
    """Load a state of the weight, and of a bias that was never stepped; return what is warned of."""
    optimizer = torch.optim.Adam(MODEL.parameters())
    step = torch.tensor(1.0)
    zeros = {name: torch.zeros(2) for name in own}
    names = {"weight": {"step": step, **own}, "bias": {"step": step, **zeros}}
    state = {"state": names, "param_groups": [{"lr": 0.1, "params": ["weight", "bias"]}]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = optim_state_dict_to_load(MODEL, optimizer, state)
    assert all(each.filename == __file__ for each in caught)
    for name, value in own.items():
        assert torch.equal(loaded["state"][0][name], value)
    return [str(each.message) for each in caught]


def test_a_state_whose_moments_are_the_same_is_warned_of_and_loaded() -> None:
    [said] = _loaded(SAME)
    assert said.startswith("FM217: `exp_avg` and `exp_avg_sq` are the same")
    assert "of 1 parameter, such as `weight`" in said
    assert len(_loaded({"square_avg": SAME["exp_avg"], "momentum_buffer": SAME["exp_avg"]})) == 1


@pytest.mark.parametrize(
    "own",
    [
        HEALTHY,
        {**HEALTHY, "max_exp_avg_sq": HEALTHY["exp_avg_sq"]},
        dict.fromkeys(HEALTHY, torch.zeros(2, 3)),
        dict.fromkeys(HEALTHY, torch.eye(2, 3)),
        {"exp_avg": SAME["exp_avg"]},
        {"exp_avg": SAME["exp_avg"], "exp_avg_sq": torch.tensor(1.0)},
    ],
)
def test_a_state_that_tells_nothing_of_that_fault_is_not(own: dict[str, torch.Tensor]) -> None:
    assert _loaded(own) == []


@pytest.mark.slow
def test_the_state_that_fsdp1_saves_on_the_cpu_is_warned_of() -> None:
    for rank, (of_names, of_whole, of_ours) in enumerate(run_ranks(optimizer_states.of_equal_moments)):
        assert "FM217" in of_names
        assert ("FM217" in of_whole) is (rank == 0)
        assert of_ours == ""
