"""Words become torch's objects."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdp_migrate.config import MixedPrecisionPolicy
from fsdp_migrate.errors import ConfigError, ProcessGroupError
from fsdp_migrate.sharding import resolve
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.torch_compat import devices


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_dtypes(name: str) -> None:
    assert str(resolve.resolve_dtype(name)) == f"torch.{name}"


def test_a_name_of_torchs_that_is_no_dtype_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"`torch\.nn` is no dtype"):
        resolve.resolve_dtype("nn")


def test_mixed_precision_policy() -> None:
    policy = resolve.resolve_mp_policy(
        MixedPrecisionPolicy(param_dtype="bfloat16", reduce_dtype="float32", cast_forward_inputs=False)
    )
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert policy.output_dtype is None
    assert policy.cast_forward_inputs is False


def test_hybrid_sharding_makes_one_shard_group_of_each_node() -> None:
    assert resolve.resolve_mesh_shape("hybrid", 32, 8) == (4, 8)
    assert resolve.resolve_mesh_shape("shard", 32, 8) == (1, 32)
    assert resolve.resolve_mesh_shape("replicate", 32, 8) == (32, 1)
    with pytest.raises(ProcessGroupError, match="12 ranks are no multiple of 8 devices"):
        resolve.resolve_mesh_shape("hybrid", 12, 8)


def test_the_nodes_of_other_machines_must_be_told() -> None:
    """A laptop that plans for a cluster would make each rank a node, without a word."""
    arguments = {"sharding_strategy": "HYBRID_SHARD"}
    plan = plan_fully_shard(nn.Linear(2, 2), arguments, world_size=32, devices_per_node=8)
    assert plan.mesh_shape == (4, 8)
    on_cpu = plan_fully_shard(nn.Linear(2, 2), {**arguments, "device_id": "cpu"}, world_size=32)
    assert on_cpu.mesh_shape == (32, 1)
    with pytest.raises(ConfigError, match=r"this machine has none\. Give `devices_per_node`"):
        plan_fully_shard(nn.Linear(2, 2), {**arguments, "device_id": "xpu:0"}, world_size=32)
    if devices.accelerator_type() is None:
        with pytest.raises(ConfigError, match="without an accelerator, does not tell"):
            plan_fully_shard(nn.Linear(2, 2), arguments, world_size=32)


def test_replicas_of_one_rank_are_averaged_as_fsdp1_did_not() -> None:
    arguments = {"sharding_strategy": "HYBRID_SHARD", "device_id": "cpu"}
    plan = plan_fully_shard(nn.Linear(2, 2), arguments, world_size=4, devices_per_node=1)
    (finding,) = [finding for finding in plan.findings if finding.code == "FM107"]
    assert finding.fidelity == "changed"
    assert "its 4 replicas trained apart" in finding.message
    for strategy, of_a_node in (("HYBRID_SHARD", 2), ("FULL_SHARD", 1), ("NO_SHARD", 1)):
        more = plan_fully_shard(
            nn.Linear(2, 2),
            {"sharding_strategy": strategy, "device_id": "cpu"},
            world_size=4,
            devices_per_node=of_a_node,
        )
        assert "FM107" not in {finding.code for finding in more.findings}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Sequential(nn.Linear(2, 2)), "The model has no module of these"),
        (nn.Sequential(nn.BatchNorm1d(2)), "units of their own"),
    ],
)
def test_modules_kept_in_full_precision_are_those_that_the_model_has(model: nn.Module, text: str) -> None:
    arguments = {"mixed_precision": {"param_dtype": "bf16"}, "auto_wrap_policy": "always"}
    plan = plan_fully_shard(model, arguments, world_size=2)
    assert [text in finding.message for finding in plan.findings if finding.code == "FM016"] == [True]
