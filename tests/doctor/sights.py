"""What is seen of models, configs, checkpoints and sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.doctor import KnownFault, Sight, examine
from fsdp_migrate.sharding.plan import plan_fully_shard
from tests.models import Net


NOW = {
    "torch": "2.13.0",
    "transformers": "5.20.0",
    "accelerate": "1.15.0",
    "mosaicml": "0.32.1",
    "transformer-engine": "2.0",
}


def seeing(**given: Any) -> Sight:
    return Sight(versions=NOW, has_accelerator=True, **given)


def of_model(model: nn.Module, shards: int = 2, **arguments: Any) -> Sight:
    config = FSDP1Config(**arguments)
    return seeing(model=model, plan=plan_fully_shard(model, config, world_size=shards))


TIED = of_model(Net(tied=True), auto_wrap_policy={nn.Embedding, nn.Linear})


def of_config(framework: str = "", versions: dict[str, str] | None = None, **given: Any) -> Sight:
    settings = given.pop("settings", {})
    return Sight(
        versions={**NOW, **(versions or {})},
        config=FSDP1Config(**given),
        settings=settings,
        framework=framework,
    )


LOW: dict[str, Any] = {"mixed_precision": {"param_dtype": "bf16", "buffer_dtype": "bf16"}}


def is_seen(fault: KnownFault, sight: Sight) -> bool:
    return bool(examine(sight, [fault]).symptoms)


def assert_seen(fault: KnownFault, there: Sight, absent: Sight) -> None:
    """A fault is seen where it is, and neither elsewhere nor with versions that do not have it."""
    assert is_seen(fault, there)
    assert not is_seen(fault, absent)
    assert not is_seen(fault, Sight(versions=NOW, has_accelerator=True))
    if fault.affects:
        assert not is_seen(fault, replace(there, versions={}))
    for affected in fault.affects:
        outside = {**NOW, affected.package: affected.before or "0.1"}
        if affected.since or affected.before:
            assert not is_seen(fault, replace(there, versions=outside))


def one_row() -> nn.Module:
    """Make a model with fewer rows than any two ranks."""
    return nn.Linear(4, 1)
