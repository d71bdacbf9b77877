"""The meta device, ranks that must agree, ignored parts, prefetching and resharding to a number."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.materialize import materialize_modules
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.sharding.prepare import filled
from fsdp_migrate.torch_compat import fsdp2
from tests.models import Net
from tests.ranks import run_ranks
from tests.sharding import meta_bodies as meta


if TYPE_CHECKING:
    from tests.rank_bodies import parity


def assert_equal(found: parity.Tensors, expected: parity.Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("with_init", [False, True], ids=["reset_parameters", "param_init_fn"])
def test_a_meta_model_gets_the_values_that_fsdp1_gives_it(with_init: bool) -> None:
    for fsdp1, ours, buffers in run_ranks(meta.initialise_both, with_init):
        assert_equal(ours, fsdp1)
        expected = None if with_init else 0.25
        for buffer in buffers.values():
            assert bool(torch.isfinite(buffer).all())
            assert expected is None or buffer.tolist() == [expected, expected]


@pytest.mark.parametrize("tied", [False, True])
def test_rank_0s_model_reaches_the_ranks_that_have_none(tied: bool) -> None:
    results = run_ranks(meta.rank0_real, tied)
    for expected, found, ties, losses in results:
        assert_equal(found, expected)
        assert ties == ([("embed.weight", "head.weight")] if tied else [])
        assert losses == results[0][3]
        assert losses[-1] < losses[0]


def test_ranks_that_alone_are_on_the_meta_device_fill_themselves_as_under_fsdp1() -> None:
    fsdp1, ours = run_ranks(meta.meta_on_rank_1, False), run_ranks(meta.meta_on_rank_1, True)
    for rank, ((_, expected, _), (parts, losses, codes)) in enumerate(zip(fsdp1, ours, strict=True)):
        assert losses == expected, "a loaded state trains as under FSDP1"
        assert codes == ["FM131"]
        assert all(bool((part == 0.125).all()) is (rank == 1) for part in parts.values() if part.numel())


def test_a_function_may_give_meta_tensors_the_dtype_that_rank_0_has() -> None:
    """FSDP1 looked at dtypes once all was filled: ranks in float32 before that were refused."""
    for expected, found, error in run_ranks(meta.filled_in_another_dtype, torch.bfloat16, True):
        assert error == ""
        assert_equal(found, expected)


@pytest.mark.parametrize("sent", [False, True])
def test_dtypes_that_differ_once_all_is_filled_are_an_error_on_all(sent: bool) -> None:
    """Who sends two bytes for a number to who takes four aborts, or takes others for them."""
    for _, _, error in run_ranks(meta.filled_in_another_dtype, torch.float32, sent):
        assert re.search(
            r"After `param_init_fn` the ranks have different dtypes in `layers.0.\S+` \(and \d+ more\): "
            r"bfloat16 on rank 0; float32 on rank 1\. Give every rank the same\.",
            error,
        )


def test_buffers_are_compared_by_their_names_where_ranks_ignore_other_modules() -> None:
    """By their places a rank that ignores one more module would compare others with each other."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    (unit,) = plan_fully_shard(model, {"sync_module_states": True}, world_size=2).units
    whole, part = filled(model, unit, model), filled(model, unit, [model[1]])
    assert "0.running_mean" in whole.keys() - part.keys()
    assert part["1.running_mean"] is whole["1.running_mean"] is model[1].running_mean


def test_what_is_real_in_a_meta_model_keeps_its_values() -> None:
    assert run_ranks(meta.keep_what_is_real) == [(0.75, True)] * 2


def test_an_init_function_that_gives_no_memory_is_an_error() -> None:
    for error in run_ranks(meta.init_that_does_nothing):
        assert re.match(r"ModelError: `param_init_fn` left .* on the meta device", error)


def test_a_buffer_that_reset_parameters_does_not_set_is_an_error_and_not_garbage() -> None:
    for error in run_ranks(meta.forget_a_buffer):
        assert re.search(r"ModelError: `layers\.1\.scale`: on the meta device, and `Forgetful\.reset", error)
        assert error.endswith(" untouched")


SAID = {
    "meta here, real there": (r"ranks \[1\] are on the meta device.*`sync_module_states` is not set",) * 2,
    "rank 0 meta": (r"ranks \[0\] are on the meta device.*Build the model of rank 0 on a real device",) * 2,
    "another shape": (r"`embed.weight` \[13, 6\] .*on rank 0; `embed.weight` \[13, 8\]",) * 2,
    "another policy": ("`auto_wrap_policy`: unit `layers.0`.* on rank 0; unit `embed` on rank 1",) * 2,
    "a typo on one rank": (
        "ModelError: Rank 1 cannot shard its model, so no rank does: `shardng_strategy`",
        "ConfigError: `shardng_strategy` is no argument",
    ),
    "a scalar on one rank": (
        "ModelError: Rank 1 cannot shard its model, so no rank does: Parameter `temperature`",
        "ModelError: Parameter `temperature` is a scalar",
    ),
}


@pytest.mark.parametrize("name", sorted(meta.DISAGREEMENTS))
def test_ranks_that_do_not_agree_all_get_an_error_and_no_model_is_touched(name: str) -> None:
    for (error, untouched), expected in zip(run_ranks(meta.disagree, name), SAID[name], strict=True):
        assert re.search(expected, error), error
        assert untouched


IGNORED: list[dict[str, Any]] = [
    {"ignored_modules": ["head"]},
    {"ignored_modules": "he.d"},
    {"ignored_states": ["head.norm", r"head\.out\..*"]},
]


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("given", IGNORED, ids=str)
def test_ignored_parts_are_trained_beside_sharded_ones(kind: str, given: dict[str, Any]) -> None:
    if not fsdp2.HAS_IGNORED_PARAMS:
        pytest.skip("torch 2.6's fully_shard cannot ignore parameters")
    for unsharded, found, plain, groups in run_ranks(meta.train_with_ignored, kind, given):
        assert plain == ["head.norm.bias", "head.norm.weight", "head.out.bias", "head.out.weight"]
        assert [group["foreach"] for group in groups] == [False]
        assert_equal(found, unsharded)


def test_trained_ignored_parameters_have_a_finding_and_frozen_ones_none() -> None:
    net = Net()
    arguments = {"ignored_modules": ["head"]}
    if not fsdp2.HAS_IGNORED_PARAMS:
        pytest.skip("torch 2.6's fully_shard cannot ignore parameters")
    codes = [finding.code for finding in plan_fully_shard(net, arguments, world_size=2).findings]
    assert codes.count("FM106") == 1
    net.head.requires_grad_(False)
    assert "FM106" not in {f.code for f in plan_fully_shard(net, arguments, world_size=2).findings}


def test_units_prefetch_each_other_in_the_order_of_the_first_forward() -> None:
    names, told = run_ranks(meta.forward_prefetch, True)[0]
    assert dict(zip(names, told, strict=True)) == {
        "": ["embed"],
        "embed": ["blocks.0"],
        "blocks.0": ["blocks.1"],
        "blocks.1": ["head"],
        "head": [],
    }
    assert run_ranks(meta.forward_prefetch, False)[0][1] == [[]] * 5


@pytest.mark.slow
def test_parameters_can_be_sharded_again_over_fewer_ranks() -> None:
    kept = run_ranks(meta.reshard_to_two, True, world_size=4, timeout=400)
    fewer = run_ranks(meta.reshard_to_two, 2, world_size=4, timeout=400)
    assert [losses for losses, _ in fewer] == [losses for losses, _ in kept]
    assert {rows for _, rows in fewer} == {9, 8}
    assert max(rows for _, rows in kept) == 5


@pytest.mark.parametrize(
    "policy",
    [
        {"min_num_params": 1e8},
        ModuleWrapPolicy(set()),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=set()),
    ],
)
def test_a_policy_that_finds_nothing_large_enough_or_names_no_class_is_told(policy: Any) -> None:
    plan = plan_fully_shard(Net(), {"auto_wrap_policy": policy}, world_size=2)
    assert [unit.fqn for unit in plan.units] == [""]
    assert "FM105" in {finding.code for finding in plan.findings}


def test_an_init_function_may_keep_several_dtypes_and_not_make_them() -> None:
    """One of them may be ignored; what is planned for one dtype is not to get another."""
    cpu = torch.device("cpu")
    mixed = torch.nn.Linear(2, 2, device="meta")
    mixed.bias.data = mixed.bias.data.bfloat16()
    materialize_modules([mixed], cpu, lambda module: module.to_empty(device="cpu"))
    assert (mixed.weight.dtype, mixed.bias.dtype) == (torch.float32, torch.bfloat16)

    def spoil(module: torch.nn.Module) -> None:
        module.to_empty(device="cpu").bias.data = torch.ones(2, dtype=torch.float64)

    with pytest.raises(ModelError, match="several dtypes"):
        materialize_modules([torch.nn.Linear(2, 2, device="meta")], cpu, spoil)
