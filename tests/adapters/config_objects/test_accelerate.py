"""Accelerate's plugin as the FSDP1 config: the real one, and what it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecision

from fsdp_migrate import plan_fully_shard
from fsdp_migrate.adapters.config_objects.accelerate import is_accelerate_plugin
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.sharding.plan import read_config
from tests.models import Net


def plugin(**arguments: Any) -> Any:
    from accelerate import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(**arguments)


def test_a_plugin_is_read() -> None:
    given = plugin(
        sharding_strategy="SHARD_GRAD_OP",
        backward_prefetch="BACKWARD_POST",
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Linear"],
        mixed_precision_policy=MixedPrecision(param_dtype=torch.bfloat16),
        use_orig_params=True,
        forward_prefetch=True,
    )
    assert is_accelerate_plugin(given)
    config = read_config(given)
    assert config.sharding_strategy == "SHARD_GRAD_OP"
    assert config.backward_prefetch == "BACKWARD_POST"
    assert config.auto_wrap_policy.classes == ("Linear",)
    assert config.mixed_precision is not None
    assert config.mixed_precision.param_dtype == "bfloat16"
    assert config.use_orig_params
    assert config.forward_prefetch


def test_a_plan_is_made_of_a_plugin() -> None:
    given = plugin(auto_wrap_policy="size_based_wrap", min_num_params=1)
    plan = plan_fully_shard(Net(), given, world_size=2)
    assert len(plan.units) > 1


def test_defaults_are_accelerates() -> None:
    config = read_config(plugin())
    assert config.sharding_strategy == "FULL_SHARD"
    assert config.backward_prefetch is None
    assert config.auto_wrap_policy is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation_checkpointing": True}, "activation_checkpointing=True"),
        ({"auto_wrap_policy": "transformer_based_wrap"}, "_no_split_modules"),
        ({"fsdp_version": 2}, r"takes a plugin of FSDP1: .* NAME\.fsdp1"),
    ],
)
def test_what_a_plugin_cannot_say_is_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(plugin(**arguments))
