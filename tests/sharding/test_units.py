"""The units are FSDP1's: compared with what a real FSDP1 wrap makes of the same model."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch import nn

from fsdp_migrate.errors import ModelError, WrapPolicyError
from fsdp_migrate.sharding.plan import plan_fully_shard
from tests.models import Net
from tests.ranks import run_ranks
from tests.sharding import units_bodies as units


def test_every_policy_of_torch_gives_fsdp1s_units() -> None:
    compared = run_ranks(units.compare_policies, world_size=1)[0]
    assert len(compared) == 3 * len(units.POLICIES)
    for label, fsdp1, ours in compared:
        assert ours == fsdp1, label


def test_policies_written_as_words_give_fsdp1s_units() -> None:
    for label, fsdp1, ours in run_ranks(units.compare_words, world_size=1)[0]:
        assert ours == fsdp1, label


def test_random_models_give_fsdp1s_units() -> None:
    compared = run_ranks(units.compare_random_models, 150, world_size=1, timeout=400)[0]
    for label, fsdp1, ours in compared:
        assert ours == fsdp1, label
    assert sum(len(ours) > 2 for _, _, ours in compared) > 50


@pytest.mark.parametrize("name", ["transformer", "ModuleWrapPolicy"])
def test_what_a_module_overrides_itself_counts_as_for_fsdp1(name: str) -> None:
    """FSDP1 asks modules for it that a callable selects, and none that a policy object does."""
    fsdp1, ours = run_ranks(units.own_precisions, units.POLICIES[name](), world_size=1)[0]
    assert ours == fsdp1
    assert (ours["blocks.0"] == "None") is (name == "transformer")
    assert ours["blocks.1"] == "bfloat16"


def test_arguments_of_a_module_without_names_are_an_error() -> None:
    net: Any = Net()
    net.head._wrap_overrides = {1: None}
    with pytest.raises(WrapPolicyError, match="`_wrap_overrides` of a Head has the argument 1"):
        plan_fully_shard(net, {"auto_wrap_policy": "always"}, world_size=2)


def test_inner_units_come_first_and_the_root_last() -> None:
    order = units.order_of_units()
    assert order == [
        *("blocks.0.up", "blocks.0.down", "blocks.0", "blocks.1.up", "blocks.1.down", "blocks.1"),
        *("head.out", "head", ""),
    ]


def test_containers_are_never_units() -> None:
    plan = plan_fully_shard(Net(), {"auto_wrap_policy": {nn.ModuleList, nn.Embedding}}, world_size=2)
    assert [unit.fqn for unit in plan.units] == ["embed", ""]
    assert "blocks.0.up.weight" in plan.root.parameters
    assert [(f.code, f.message.partition(":")[0]) for f in plan.findings if f.code == "FM101"] == [
        ("FM101", "`blocks`")
    ]


def test_modules_without_parameters_are_no_units_and_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    plan = plan_fully_shard(model, {"auto_wrap_policy": "always"}, world_size=2)
    assert [unit.fqn for unit in plan.units] == ["0", ""]
    assert [finding.message for finding in plan.findings if finding.code == "FM102"] == [
        "`1`: selected, but all of their parameters are in inner units."
    ]


def test_an_unknown_class_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(WrapPolicyError, match=r"`Blok` is in the model\. Did you mean `Block`\?.*LayerNorm"):
        plan_fully_shard(Net(), {"auto_wrap_policy": "Blok"}, world_size=2)


def _needs_more(module: nn.Module, recurse: bool, nonwrapped_numel: int, threshold: int) -> bool:
    return recurse or nonwrapped_numel > threshold


def test_a_policy_with_unbound_arguments_is_an_error_that_says_how_to_bind_them() -> None:
    with pytest.raises(WrapPolicyError, match=r"missing 1 required.*functools\.partial"):
        plan_fully_shard(Net(), {"auto_wrap_policy": _needs_more}, world_size=2)
    bound = functools.partial(_needs_more, threshold=100)
    found = plan_fully_shard(Net(), {"auto_wrap_policy": bound}, world_size=2).units
    assert [unit.numel for unit in found] == [119, 108, 119, 108, 103, 102]


def test_parameters_without_elements() -> None:
    """One without rows is taken; of one that has rows without elements, torch would lose the number."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Embedding(0, 3))
    assert plan_fully_shard(model, {}, world_size=2).root.numel == 12
    model[1] = nn.Embedding(4, 0)
    with pytest.raises(ModelError, match=r"`1.weight` of shape \(4, 0\)"):
        plan_fully_shard(model, {}, world_size=2)
