"""Activation checkpointing of chosen layers, in place: the public path of what stands in ``sharding``."""

from __future__ import annotations

from fsdp_migrate.sharding.activation_checkpointing import (
    CheckpointOptions,
    CheckpointPlan,
    apply_activation_checkpointing,
    plan_activation_checkpointing,
)


__all__ = [
    "CheckpointOptions",
    "CheckpointPlan",
    "apply_activation_checkpointing",
    "plan_activation_checkpointing",
]
