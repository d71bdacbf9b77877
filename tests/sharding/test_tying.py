"""Tied parameters stay tied, and train as they do unsharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import CustomPolicy

from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.torch_compat import fsdp2
from tests.models import Block, Net
from tests.ranks import run_ranks
from tests.sharding import ties_bodies as ties


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.sharding.tying import TieOwner


LAYERS = ("blocks.0.up", "blocks.0.down", "blocks.0", "blocks.1.up", "blocks.1.down", "blocks.1")

UNITS: dict[str, tuple[list[str], list[str]]] = {
    "embedding and head, both in the root": (["blocks.0", "blocks.1", ""], ["blocks.0", "blocks.1", ""]),
    "embedding and head, units of their own": ([*LAYERS, ""], [*LAYERS, "embed+head.out", ""]),
    "embedding and the unit around the head": (
        ["blocks.0", "blocks.1", ""],
        ["blocks.0", "blocks.1", "embed+head", ""],
    ),
    "a layer of one block and of the other": ([""], ["blocks.0+blocks.1", ""]),
    # The layers do not lie side by side, so they cannot be grouped without their blocks.
    "the same, with the layers as units too": (
        ["blocks.0.down", "blocks.1.down", "head.out", ""],
        ["blocks.0.down", "blocks.1.down", "head.out", ""],
    ),
    "biases only": ([""], ["blocks.0+blocks.1", ""]),
    "one layer registered in two blocks": ([""], ["blocks.0+blocks.1", ""]),
    "one unit registered twice": (["first", ""], ["first", ""]),
    "within one block": (["blocks.0", "blocks.1", ""], ["blocks.0", "blocks.1", ""]),
    "within one block, layers as units": (
        [
            "blocks.0.up",
            "blocks.0",
            "blocks.1.norm",
            "blocks.1.up",
            "blocks.1.down",
            "head.norm",
            "head.out",
            "",
        ],
        [
            *("blocks.0.up", "blocks.0.norm+blocks.0.down", "blocks.1.norm", "blocks.1.up", "blocks.1.down"),
            *("head.norm", "head.out", ""),
        ],
    ),
}
"""The units by name, with the owner above, and as groups."""


def check(outcome: ties.Outcome, *, exactly: bool) -> None:
    assert outcome.ties_after == outcome.ties_before
    assert outcome.ties_before
    (plain_losses, plain), (losses, prepared) = outcome.plain, outcome.prepared
    assert losses == (plain_losses if exactly else pytest.approx(plain_losses, abs=1e-5))
    assert prepared.keys() == plain.keys()
    for name, expected in plain.items():
        if exactly:
            assert torch.equal(prepared[name], expected), name
        else:  # an average over three equal gradients is rounded
            torch.testing.assert_close(prepared[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied", ["parent", "group"])
@pytest.mark.parametrize("case", sorted(ties.CASES))
def test_tied_parameters_train_as_they_do_unsharded(case: str, tied: TieOwner) -> None:
    """Thirteen rows and seventeen divide by neither 2 nor 3."""
    for outcome in run_ranks(ties.train_tied, case, tied):
        check(outcome, exactly=True)
        assert outcome.units == UNITS[case][tied == "group"]
        crossing = UNITS[case][0] != UNITS[case][1] or case == "the same, with the layers as units too"
        grouped = any("+" in unit for unit in outcome.units)
        assert outcome.codes == ([] if not crossing else ["FM104"] if grouped else ["FM103"])


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["parent", "group"])
def test_tied_parameters_train_at_three_ranks(tied: TieOwner) -> None:
    case = "embedding and head, units of their own"
    for outcome in run_ranks(ties.train_tied, case, tied, world_size=3, timeout=400):
        check(outcome, exactly=False)


def test_the_plan_says_who_owns_a_tied_parameter_and_why() -> None:
    arguments = {"auto_wrap_policy": {nn.Embedding, nn.Linear}}
    plan = plan_fully_shard(Net(tied=True), arguments, world_size=2)
    assert [finding.message for finding in plan.findings if finding.code == "FM103"] == [
        (
            "`embed.weight` and `head.out.weight` are one parameter: the root unit owns it, and `embed`, "
            "`head.out` are no units."
        )
    ]
    plan = plan_fully_shard(Net(tied=True), arguments, world_size=2, tied="group")
    assert [finding.message for finding in plan.findings if finding.code == "FM104"] == [
        (
            "`embed.weight` and `head.out.weight` are one parameter: its modules `embed`, `head.out` are "
            "sharded together, as one unit."
        )
    ]


def test_a_tie_into_an_ignored_module_is_ignored_as_a_whole() -> None:
    net = Net(tied=True)
    arguments = {"auto_wrap_policy": {nn.Embedding, nn.Linear}, "ignored_modules": [net.head]}
    if not fsdp2.HAS_IGNORED_PARAMS:
        pytest.skip("torch 2.6's fully_shard cannot ignore parameters")
    plan = plan_fully_shard(net, arguments, world_size=2)
    assert "embed.weight" in plan.ignored
    assert not any("embed.weight" in unit.parameters for unit in plan.units)
    assert not any(finding.code == "FM103" for finding in plan.findings)


def test_a_tie_between_full_and_mixed_precision_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].bias = model[0].bias
    arguments = {"auto_wrap_policy": {nn.Linear}, "mixed_precision": "bf16"}
    with pytest.raises(ModelError, match="module `1` stays in full precision and the others do not"):
        plan_fully_shard(model, arguments, world_size=2)


def test_a_tie_that_fsdp1_tore_is_told() -> None:
    """Flat parameters: each unit flattened the value that it found, and trained it."""
    arguments = {"auto_wrap_policy": {nn.Embedding}}
    torn = plan_fully_shard(Net(tied=True), {**arguments, "use_orig_params": False}, world_size=2)
    (finding,) = [finding for finding in torn.findings if finding.code == "FM273"]
    assert finding.message.startswith("`embed.weight` and `head.out.weight` are one parameter in several")
    for tied, more in ((True, {"use_orig_params": True}), (False, {}), (True, {"auto_wrap_policy": {Block}})):
        plan = plan_fully_shard(Net(tied=tied), {**arguments, **more}, world_size=2)
        assert "FM273" not in {finding.code for finding in plan.findings}


@pytest.mark.parametrize("with_init", [True, False])
def test_fsdp1_tore_ties_on_the_meta_device(with_init: bool) -> None:
    """It gave each module memory of its own, by whatever function."""
    for outcome in run_ranks(ties.tie_on_meta, with_init):
        assert outcome == ties.OnMeta(fsdp1_is_tied=False, is_tied=True, told=True, told_of_real=False)


def test_a_plan_tells_of_ties_on_the_meta_device() -> None:
    with torch.device("meta"):
        tied, apart = Net(tied=True), Net(tied=False)
    init = {"param_init_fn": lambda module: module.to_empty(device="cpu", recurse=False)}
    for model, arguments, is_told in (
        (tied, init, 1),
        (tied, {**init, "auto_wrap_policy": {nn.Embedding}, "use_orig_params": False}, 1),
        (tied, {**init, "sync_module_states": True}, 0),
        (tied, {}, 0),  # a plan of a model that may be made elsewhere otherwise
        (apart, init, 0),
        (Net(tied=True), init, 0),
    ):
        plan = plan_fully_shard(model, arguments, world_size=2)
        assert [finding.code for finding in plan.findings].count("FM273") == is_told


def test_one_module_at_two_places_was_not_torn() -> None:
    """FSDP1 flattened its parameters once, in the unit that holds it."""
    parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    model = nn.Sequential(parts, nn.ModuleList(nn.Sequential(each) for each in parts))
    arguments = {"auto_wrap_policy": {nn.Sequential}, "use_orig_params": False}
    assert "FM273" not in {each.code for each in plan_fully_shard(model, arguments, world_size=2).findings}


def test_a_tie_that_fsdp1_reduced_in_part_is_told() -> None:
    """Nothing was sharded, so that the others could use it; but one unit reduced it."""
    arguments = {
        "auto_wrap_policy": {nn.Embedding},
        "sharding_strategy": "NO_SHARD",
        "use_orig_params": True,
    }
    told = plan_fully_shard(Net(tied=True), arguments, world_size=2)
    (finding,) = [finding for finding in told.findings if finding.code == "FM123"]
    assert finding.message.startswith("`embed.weight` and `head.out.weight` are one parameter in several")
    for tied, more in (
        (True, {"sharding_strategy": "FULL_SHARD"}),
        (False, {}),
        (True, {"auto_wrap_policy": {Block}}),
    ):
        plan = plan_fully_shard(Net(tied=tied), {**arguments, **more}, world_size=2)
        assert "FM123" not in {finding.code for finding in plan.findings}


@pytest.mark.parametrize("tied", ["parent", "group"])
def test_a_tied_module_with_settings_of_its_own_is_an_error(tied: TieOwner) -> None:
    own = {nn.Embedding: {"mixed_precision": MixedPrecision(torch.bfloat16)}, nn.Linear: {}}
    policy = CustomPolicy(lambda module: own.get(type(module), False))
    match = "the auto-wrap policy gives module `embed` another `mixed_precision`"
    with pytest.raises(ModelError, match=match):
        plan_fully_shard(Net(tied=True), {"auto_wrap_policy": policy}, world_size=2, tied=tied)
    arguments = {"auto_wrap_policy": policy, "mixed_precision": MixedPrecision(torch.bfloat16)}
    plan = plan_fully_shard(Net(tied=True), arguments, world_size=2, tied=tied)
    assert {unit.mp_policy.param_dtype for unit in plan.units} == {"bfloat16"}


def test_ties_are_there_after_loading(tmp_path: Path) -> None:
    for found, equal in run_ranks(ties.load_tied, str(tmp_path / "checkpoint")):
        assert found == [("embed.weight", "head.out.weight")]
        assert equal
