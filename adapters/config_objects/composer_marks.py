"""What a Composer model itself says: which modules are units, which layers are recomputed, who initialises.

Composer asks the direct children of a ``ComposerModel``, each of which FSDP1 wraps on its own: for the marks
``_fsdp_wrap`` and ``_activation_checkpointing`` on modules, and for the functions ``fsdp_wrap_fn``,
``activation_checkpointing_fn`` and ``param_init_fn`` of the child. The source is
``composer.distributed.dist_strategy.prepare_fsdp_module`` of Composer 0.32. Nothing here imports Composer,
and torch only where a policy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.config_objects.composer_groups import has_words, read_group
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from torch import nn


WRAP_MARK, WRAP_FN = "_fsdp_wrap", "fsdp_wrap_fn"
CHECKPOINT_MARK, CHECKPOINT_FN = "_activation_checkpointing", "activation_checkpointing_fn"
INIT_FN = "param_init_fn"

MODEL_MARKS: tuple[str, ...] = (WRAP_MARK, WRAP_FN, CHECKPOINT_MARK, CHECKPOINT_FN, INIT_FN)
"""The attributes of models and modules that Composer's FSDP1 looks at."""


@dataclass(frozen=True)
class Children:
    """The direct children of a ``ComposerModel``, by name: what FSDP1 shards, and what it leaves alone."""

    sharded: Mapping[str, nn.Module]
    unwrapped: tuple[str, ...]
    metrics: tuple[str, ...]


def composer_children(model: nn.Module) -> Children:
    """Tell which direct children FSDP1 would wrap: all but metrics and those marked not to be."""
    sharded: dict[str, nn.Module] = {}
    unwrapped: list[str] = []
    metrics: list[str] = []
    for name, child in model.named_children():
        if is_metric(child):
            metrics.append(name)
        elif not bool(getattr(child, WRAP_MARK, True)):
            unwrapped.append(name)
        else:
            sharded[name] = child
    return Children(sharded, tuple(unwrapped), tuple(metrics))


def is_metric(module: nn.Module) -> bool:
    """Tell a metric of torchmetrics, or a collection of them, without importing torchmetrics."""
    names = {"Metric", "MetricCollection"}
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == "torchmetrics"
        for base in type(module).__mro__
    )


def is_composer_model(model: object) -> bool:
    """Tell a ``ComposerModel`` without importing Composer."""
    return any(
        base.__name__ == "ComposerModel" and base.__module__.partition(".")[0] == "composer"
        for base in type(model).__mro__
    )


def composer_wrap_policy(child: nn.Module, make_group: Callable[[Any], Any] | None = None) -> Any:
    """Return the auto-wrap policy that Composer makes for a child: ``_fsdp_wrap``, then ``fsdp_wrap_fn``.

    What ``fsdp_wrap_fn`` returns may be a mapping of FSDP1 arguments for that module, in Composer's words;
    ``make_group`` turns words for process groups into groups.

    Raises:
        ConfigError: (the policy, when it is run) An argument that ``fsdp_wrap_fn`` gives means nothing.
    """
    from torch.distributed.fsdp.wrap import CustomPolicy

    asked = getattr(child, WRAP_FN, None)

    def wrap(module: nn.Module) -> bool | dict[str, Any]:
        if hasattr(module, WRAP_MARK):
            return bool(getattr(module, WRAP_MARK))
        if not callable(asked):
            return False
        answer = asked(module)
        return read_wrap_answer(answer, make_group) if isinstance(answer, Mapping) else bool(answer)

    policy: Any = CustomPolicy(wrap)
    policy.may_select_nothing = True  # a child without marks is one unit
    return policy


def read_wrap_answer(
    answer: Mapping[Any, Any], make_group: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """Read the mapping that ``fsdp_wrap_fn`` returned for a module: FSDP1's arguments in Composer's words.

    Raises:
        ConfigError: A key is no argument of FSDP1, or its value cannot be read.

    Example:
        >>> read_wrap_answer({"sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": "NONE"})
        {'sharding_strategy': 'SHARD_GRAD_OP', 'backward_prefetch': None}
    """
    read: dict[str, Any] = {}
    for key, value in answer.items():
        if key not in FSDP1Config.model_fields:
            near = words.closest(str(key), FSDP1Config.model_fields)
            msg = f"`{WRAP_FN}` gives `{key}`, which is no argument of FSDP1.{near}"
            raise ConfigError(msg, field=f"{WRAP_FN}.{key}")
        read[key] = value
    if "sharding_strategy" in read:
        read["sharding_strategy"] = words.read_strategy(read["sharding_strategy"], "sharding_strategy")
    if "backward_prefetch" in read:
        read["backward_prefetch"] = words.read_prefetch(read["backward_prefetch"], "backward_prefetch")
    if isinstance(read.get("mixed_precision"), str):
        msg = (
            f"`{WRAP_FN}` gives `mixed_precision` as the word {read['mixed_precision']!r}, which Composer "
            "refuses: it takes torch's `MixedPrecision` there."
        )
        raise ConfigError(msg, field=f"{WRAP_FN}.mixed_precision")
    if read.get("process_group") is not None:
        group = read_group(read["process_group"], f"{WRAP_FN}.process_group")
        read["process_group"] = make_group(group) if make_group and has_words(group) else group
        # The mesh that Composer's state makes for the whole model would contradict it.
        read.setdefault("device_mesh", None)
    return read


def layers_to_checkpoint(child: nn.Module) -> list[nn.Module]:
    """Return the modules at or below a child that its marks choose for activation checkpointing."""
    asked = getattr(child, CHECKPOINT_FN, None)

    def chosen(module: nn.Module) -> bool:
        if hasattr(module, CHECKPOINT_MARK):
            return bool(getattr(module, CHECKPOINT_MARK))
        return bool(asked(module)) if callable(asked) else False

    return [module for module in child.modules() if chosen(module)]


def meta_initialiser(child: nn.Module, device: Any) -> Callable[[nn.Module], None] | None:
    """Return what gives a child's meta modules their values: its own ``param_init_fn``, or None without one.

    Composer gives each module memory and then calls the function on it, module by module; modules without
    meta tensors are left alone.
    """
    own = getattr(child, INIT_FN, None)
    if not callable(own):
        return None

    def initialise(module: nn.Module) -> None:
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in tensors):
            module.to_empty(device=device, recurse=False)
            own(module)

    return initialise
