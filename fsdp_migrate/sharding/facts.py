"""What of a plan decides which bytes go over the wire, and when: each under the argument that it hangs on.

Ranks that differ in any of it wait for each other, or take each other's bytes for something else. What a rank
does by itself is left out: casts of inputs and buffers, offloading, initialisation, what it ignores.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.sharding import resolve
from fsdp_migrate.sharding.activation_checkpointing import layers_with_units
from fsdp_migrate.torch_compat.tensor_kinds import gather_hooks


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from fsdp_migrate.config import FSDP2Config
    from fsdp_migrate.sharding.plan import ShardPlan
    from fsdp_migrate.sharding.units import UnitPlan


THE_MODEL, IGNORED, UNITS, BUFFERS = "the model", "ignored_states", "the units", "the buffers"
WITH_DTYPES = frozenset({THE_MODEL, BUFFERS})
"""What says dtypes too, which a ``param_init_fn`` may change."""


@dataclass(frozen=True)
class Fact:
    """One thing that ranks must have in common, part by part; a name in backticks is an argument."""

    name: str
    parts: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A short text that differs where the parts do."""
        return hashlib.sha256(repr(self.parts).encode()).hexdigest()[:16]


def facts_of(plan: ShardPlan, model: nn.Module) -> Iterator[Fact]:
    """Yield what the ranks must have in common; the arguments first, then the model and the units."""
    for name, value in _settings(plan.root).items():
        yield Fact(f"`{name}`", (value,))
    yield Fact("`device_id`", (resolve.resolve_device_type(plan.config),))
    yield Fact("`mesh`", (f"{plan.mesh_shape[0]} replicas of {plan.mesh_shape[1]} shards",))
    yield Fact(
        "`mixed_precision._module_classes_to_ignore`",
        tuple(f"unit `{unit.fqn}`" for unit in plan.units if unit.full_precision),
    )
    yield Fact("`auto_wrap_policy`", tuple(_units(plan)))
    if plan.config.broadcast_from_rank0:
        yield Fact(BUFFERS, tuple(_buffers(model, plan)))
    yield Fact(f"`{IGNORED}`", tuple(f"`{name}`" for name in plan.ignored))
    yield Fact("the placement of tensor or expert parallelism", tuple(map(str, plan.parallel)))
    yield Fact(THE_MODEL, tuple(_parameters(model, plan)))
    yield Fact(UNITS, tuple(f"`{unit.fqn}` with {list(unit.parameters)}" for unit in plan.units))
    names = {unit.fqn for unit in plan.units}
    recomputed = layers_with_units(plan.checkpointing, names) if plan.checkpointing is not None else ()
    yield Fact("`activation_checkpointing`", tuple(recomputed))
    yield Fact("`skipped_units`", (str(plan.skipped_units),))
    yield Fact("`communication`", tuple(map(repr, plan.communication)))


def shapes_of(model: nn.Module, plan: ShardPlan) -> Fact:
    """Return what ranks communicate of a model but for dtypes: names, shapes, and what of it is trained."""
    managed = {name for unit in plan.units for name in unit.parameters}
    params = model.named_parameters(remove_duplicate=False)
    said = [f"`{name}` {list(each.shape)} {each.requires_grad}" for name, each in params if name in managed]
    if plan.config.broadcast_from_rank0:
        said += [text.rpartition(" ")[0] for text in _buffers(model, plan)]
    return Fact(THE_MODEL, tuple(said))


_FOLLOWS = {
    "`reshard_after_forward`": "`sharding_strategy`",
    "`mesh`": "`sharding_strategy`",
    "`auto_wrap_policy`": "`mixed_precision._module_classes_to_ignore`",
    BUFFERS: "`sync_module_states`",
}
"""What differs wherever something else does, which is then enough to name."""


def differing(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names under which not all ranks have the same, without those that follow from others.

    What a rank ignores is its own affair, unless other ranks shard it.
    """
    names = list(dict.fromkeys(name for rank in facts for name in rank))
    found = [name for name in names if len({rank.get(name) for rank in facts}) > 1]
    if THE_MODEL not in found:
        found = [name for name in found if name != f"`{IGNORED}`"]
    first = [name for name in found if name != UNITS and _FOLLOWS.get(name) not in found]
    return first or found


_STRATEGIES = {
    ("shard", True): "FULL_SHARD",
    ("shard", False): "SHARD_GRAD_OP",
    ("hybrid", True): "HYBRID_SHARD",
    ("hybrid", False): "_HYBRID_SHARD_ZERO2",
}


def _settings(unit: UnitPlan) -> dict[str, str]:
    """Return a unit's settings, by the FSDP1 arguments that they come from."""
    config: FSDP2Config = unit.config
    precision = config.mp_policy
    # By the root: what the call gives as `reshard_after_forward` is for the other units alone.
    frees = config.root_reshard_after_forward is None
    return {
        "sharding_strategy": _STRATEGIES.get((config.mesh, frees), "NO_SHARD"),
        "reshard_after_forward": str(config.reshard_after_forward),
        "mixed_precision.param_dtype": str(precision.param_dtype),
        "mixed_precision.reduce_dtype": str(precision.reduce_dtype),
        "backward_prefetch": "BACKWARD_PRE" if config.backward_prefetch else "None",
        "forward_prefetch": str(config.forward_prefetch),
        "sync_module_states": str(config.broadcast_from_rank0),
    }


def _units(plan: ShardPlan) -> Iterator[str]:
    common = _settings(plan.root)
    for unit in plan.units:
        own = [f"{name}={value}" for name, value in _settings(unit).items() if value != common[name]]
        modules = " + ".join(f"`{fqn}`" for fqn in (unit.fqn, *unit.grouped))
        if not unit.is_root:
            yield f"unit {modules}" + (f" of {', '.join(own)}" if own else "")


def _buffers(model: nn.Module, plan: ShardPlan) -> Iterator[str]:
    ignored = set(plan.ignored_modules)
    for fqn, module in model.named_modules():
        if fqn not in ignored:
            for name, buffer in module.named_buffers(prefix=fqn, recurse=False):
                yield f"`{name}` {_kind(buffer)}"


def _parameters(model: nn.Module, plan: ShardPlan) -> Iterator[str]:
    """Describe what is sharded; whether it is trained decides whether its gradient is reduced."""
    managed = {name for unit in plan.units for name in unit.parameters}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in managed:
            hooks = gather_hooks(parameter)
            kind = _kind(parameter) + ("" if hooks is None else f" {hooks.kind}")
            yield f"`{name}` {kind}" + ("" if parameter.requires_grad else ", frozen")


def _kind(tensor: object) -> str:
    shape, dtype = getattr(tensor, "shape", ()), getattr(tensor, "dtype", "")
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"
