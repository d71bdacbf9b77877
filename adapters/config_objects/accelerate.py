"""Accelerate's ``FullyShardedDataParallelPlugin`` as an object: the FSDP1 arguments that it holds.

Accelerate is not imported: its plugin is told by its class.
"""

from __future__ import annotations

from typing import Any

from fsdp_migrate import words
from fsdp_migrate.errors import ConfigError


_AS_THEY_ARE = (
    "backward_prefetch",
    "cpu_offload",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "sync_module_states",
    "param_init_fn",
)


def is_accelerate_plugin(value: object) -> bool:
    """Tell whether an object is Accelerate's plugin for FSDP, without importing Accelerate.

    Example:
        >>> is_accelerate_plugin({"sharding_strategy": "FULL_SHARD"})
        False
    """
    return any(
        base.__name__ == "FullyShardedDataParallelPlugin"
        and base.__module__.partition(".")[0] == "accelerate"
        for base in type(value).__mro__
    )


def plugin_arguments(plugin: Any) -> dict[str, Any]:
    """Return the arguments of ``FullyShardedDataParallel`` that Accelerate's plugin stands for.

    Nothing is changed. What Accelerate does beside FSDP (``activation_checkpointing``) is not an argument:
    it is refused here, and given to ``prepare_fully_shard`` itself.

    Raises:
        ConfigError: The plugin is for FSDP2, or needs the model to say which classes to wrap.
    """
    if getattr(plugin, "fsdp_version", 1) == 2:
        msg = (
            "The plugin has `fsdp_version` 2: Accelerate runs FSDP2 with it, and `accelerator.prepare` "
            "shards the model. prepare_fully_shard takes a plugin of FSDP1: start with the config as it "
            "was, which `config --write` keeps as NAME.fsdp1."
        )
        raise ConfigError(msg, field="fsdp_version")
    if getattr(plugin, "activation_checkpointing", False):
        msg = (
            "The plugin has `activation_checkpointing`, which Accelerate does after FSDP. Switch it off in "
            "the plugin, and give `activation_checkpointing=True` to prepare_fully_shard."
        )
        raise ConfigError(msg, field="activation_checkpointing")
    arguments: dict[str, Any] = {
        name: getattr(plugin, name) for name in _AS_THEY_ARE if hasattr(plugin, name)
    }
    # No prefetching is written as None; of the others None says that nothing was given.
    arguments = {
        name: value for name, value in arguments.items() if value is not None or name == "backward_prefetch"
    }
    strategy = getattr(plugin, "sharding_strategy", None) or getattr(plugin, "reshard_after_forward", None)
    if strategy is not None:
        arguments["sharding_strategy"] = strategy
    for name, argument in (
        ("mixed_precision_policy", "mixed_precision"),
        ("ignored_modules", "ignored_modules"),
    ):
        if getattr(plugin, name, None) is not None:
            arguments[argument] = getattr(plugin, name)
    policy = _policy(plugin)
    if policy is not None:
        arguments["auto_wrap_policy"] = policy
    return arguments


def _policy(plugin: Any) -> Any:
    policy = getattr(plugin, "auto_wrap_policy", None)
    name = getattr(policy, "__name__", "")
    if name == "transformer_auto_wrap_policy":
        classes = getattr(plugin, "transformer_cls_names_to_wrap", None)
        if words.is_nothing(classes) or not classes:
            msg = (
                "The plugin wraps by class and names none: Accelerate takes the model's `_no_split_modules`. "
                "Give them: `prepare_fully_shard(..., auto_wrap_policy=model._no_split_modules)`."
            )
            raise ConfigError(msg, field="transformer_cls_names_to_wrap")
        return {"transformer_layer_cls": classes}
    if name == "size_based_auto_wrap_policy":
        count = getattr(plugin, "min_num_params", None)
        return {"min_num_params": count} if count else None
    return policy
