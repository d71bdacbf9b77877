"""The rules of scanning and rewriting, one file each. A rule finds; it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source.rules import (
    accelerate_plugin,
    class_checks,
    class_names,
    clipping,
    constructor,
    dtensors,
    framework_clipping,
    framework_collectives,
    fsdp_modules,
    given_away,
    grad_scaler,
    hf_arguments,
    launch_flags,
    lightning,
    loggers,
    manual_wrapping,
    meshes,
    mixed_optimizers,
    mocks,
    model_methods,
    module_attribute,
    no_sync,
    optim_state_dicts,
    optimizer_states,
    own_optimizers,
    parameter_names,
    parameter_shapes,
    part_states,
    partials,
    prepared_apart,
    privates,
    rank_files,
    raw_optimizer_states,
    recurrent_layers,
    sharded_tensors,
    state_dicts,
    subclass,
    summon,
    trainer_optimizers,
    trainers,
    words,
    wrapped_names,
)


if TYPE_CHECKING:
    from types import ModuleType


RULES: tuple[ModuleType, ...] = (
    lightning,
    accelerate_plugin,
    prepared_apart,
    hf_arguments,
    constructor,
    partials,
    subclass,
    manual_wrapping,
    words,
    class_checks,
    fsdp_modules,
    state_dicts,
    part_states,
    optim_state_dicts,
    raw_optimizer_states,
    rank_files,
    clipping,
    framework_clipping,
    no_sync,
    summon,
    grad_scaler,
    module_attribute,
    wrapped_names,
    class_names,
    privates,
    recurrent_layers,
    parameter_shapes,
    parameter_names,
    dtensors,
    meshes,
    loggers,
    framework_collectives,
    given_away,
    own_optimizers,
    optimizer_states,
    mixed_optimizers,
    sharded_tensors,
    model_methods,
    mocks,
    trainers,
    trainer_optimizers,
    launch_flags,
)
"""Every rule that looks for something of its own, in the order in which they are asked."""

OF_MODELS: frozenset[ModuleType] = frozenset(
    {
        clipping,
        dtensors,
        framework_clipping,
        framework_collectives,
        given_away,
        loggers,
        meshes,
        mixed_optimizers,
        model_methods,
        module_attribute,
        no_sync,
        optim_state_dicts,
        optimizer_states,
        own_optimizers,
        parameter_names,
        parameter_shapes,
        part_states,
        privates,
        raw_optimizer_states,
        state_dicts,
        summon,
    }
)
"""Those whose comments are of a sharded model. Where FSDP is off there is none; settings stay settings."""
OF_PARAMETERS: frozenset[ModuleType] = frozenset(
    {
        dtensors,
        framework_collectives,
        given_away,
        loggers,
        mixed_optimizers,
        model_methods,
        own_optimizers,
        parameter_names,
        parameter_shapes,
        raw_optimizer_states,
    }
)
"""Those of them that do not say themselves of a framework's model that it may be whole."""
