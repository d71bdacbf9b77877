"""FSDP1 configs of frameworks, where ``FullyShardedDataParallel``'s arguments are expected: Composer's.

Nothing is imported for a framework that is not there: its objects are recognised by their class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.config_objects.composer import composer_fsdp1_config, is_composer_config
from fsdp_migrate.adapters.config_objects.composer_groups import has_words
from fsdp_migrate.adapters.config_objects.composer_marks import (
    composer_children,
    composer_wrap_policy,
    is_composer_model,
    layers_to_checkpoint,
)
from fsdp_migrate.errors import ConfigError, ModelError
from fsdp_migrate.findings import listed
from fsdp_migrate.torch_compat import devices, module_kinds


if TYPE_CHECKING:
    from torch import nn

    from fsdp_migrate.adapters.config_objects.composer import ComposerSettings
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.findings import Finding


_MOST_CHILDREN = 4
_EACH_CHILD = (
    "The model is a whole ComposerModel, {}. Composer's FSDP1 shards each of its children on its own, and "
    "asks each for its marks, such as `fsdp_wrap_fn`: give prepare_fully_shard each child ({}), or give "
    "Composer's Trainer the callback FSDP2Migration, which does that."
)


@dataclass(frozen=True)
class FrameworkConfig:
    """What a framework's config says: FSDP1's arguments, what there is to say, and what is recomputed."""

    config: FSDP1Config
    findings: tuple[Finding, ...] = ()
    activation_checkpointing: dict[str, Any] | None = None


def read_framework_config(given: Any, model: nn.Module, *, has_mesh: bool) -> FrameworkConfig | None:
    """Read Composer's ``FSDPConfig`` for a model that bears Composer's marks; None if it is something else.

    Without a Trainer its ``precision`` is what Composer's own ``prepare_fsdp_module`` takes by itself:
    ``amp_fp16`` on an accelerator, ``fp32`` on the CPU.

    Raises:
        ConfigError: A field means nothing, or asks for groups or degrees that only a Trainer, or ``mesh``,
            can give.
        ModelError: The model is a whole ``ComposerModel``, of which Composer shards each child on its own.
    """
    if not is_composer_config(given):
        return None
    if is_composer_model(model):
        children = listed([f"`{name}`" for name in composer_children(model).sharded], _MOST_CHILDREN)
        raise ModelError(_EACH_CHILD.format(type(model).__name__, children), fqn="")
    precision = "fp32" if devices.accelerator_type() is None else "amp_fp16"
    mapping = composer_fsdp1_config(given, precision=precision)
    settings = mapping.settings
    if has_words(settings.process_group):
        msg = "`process_group` holds Composer's words for groups. Make the groups, or use FSDP2Migration."
        raise ConfigError(msg, field="process_group")
    asks = settings.replicate_degree is not None or settings.shard_degree != -1
    if asks and not has_mesh and mapping.config.device_mesh is None:
        msg = (
            "`data_parallel_shard_degree` and `data_parallel_replicate_degree` make a mesh in Composer's "
            "Trainer, and there is none here. Pass `mesh`, or use FSDP2Migration."
        )
        raise ConfigError(msg, field="data_parallel_shard_degree")
    config = mapping.config.updated(auto_wrap_policy=composer_wrap_policy(model))
    return FrameworkConfig(config, mapping.findings, _checkpointing(model, settings))


def _checkpointing(model: nn.Module, settings: ComposerSettings) -> dict[str, Any] | None:
    if not settings.recompute and not settings.offload_activations:
        return None
    layers = {layer for layer in layers_to_checkpoint(model) if module_kinds.has_forward(layer)} - {model}
    if not layers:
        return None
    return {
        "check_fn": lambda module: module in layers,
        "reentrant": settings.reentrant and settings.recompute,
        "offload_to_cpu": settings.offload_activations,
        "recompute": settings.recompute,
    }
