"""Which units Accelerate's own FSDP2 makes of a model, and which parameters two of them share.

The units of FSDP1's policy are not all: later versions give the embeddings, and the head with the norm before
it, units of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.config import ClassWrap, SizeWrap
from fsdp_migrate.sharding.tying import find_ties
from fsdp_migrate.sharding.wrap import post_order, resolve_classes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.sharding.tying import Tie


EMBEDDINGS_AND_HEAD = "the unit of embeddings and head"


def shared_across_units(model: nn.Module, policy: Any, version: str) -> list[Tie]:
    """Return the parameters that several of Accelerate's units would share: FSDP2 then stops.

    Args:
        model: The model; it is not changed.
        policy: What FSDP1's ``auto_wrap_policy`` is read as. None: the model's own ``_no_split_modules``.
        version: Accelerate's.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
        >>> model[2].weight = model[0].weight
        >>> shared_across_units(model, None, "1.15")
        []
        >>> [tie.names for tie in shared_across_units(model, SizeWrap(min_num_params=5), "1.15")]
        [('0.weight', '2.weight')]
    """
    ties = find_ties(model, accelerate_units(model, policy, version))
    return [tie for tie in ties if tie.crosses_units]


def accelerate_units(model: nn.Module, policy: Any, version: str) -> dict[nn.Module, str]:
    """Return the modules that Accelerate's FSDP2 gives to ``fully_shard`` before the root, by their units.

    Modules that it gives in one call have one unit's name.
    """
    units = {module: name for name, module in _by_policy(model, policy)}
    if not ACCELERATE["embeddings_apart"].holds(version):
        return units
    names = {module: name for name, module in model.named_modules()}
    embeddings, head = (_asked(model, f"get_{which}_embeddings") for which in ("input", "output"))
    weight = getattr(embeddings, "weight", None)
    is_tied = weight is not None and weight is getattr(head, "weight", None)
    last = [_final_norm(model), embeddings, head] if is_tied else [_final_norm(model), head]
    if is_tied and not ACCELERATE["tied_in_one_unit"].holds(version):
        last.pop()
    if not is_tied and embeddings is not None:
        units.setdefault(embeddings, names.get(embeddings, "the embeddings"))
    for module in last:
        if module is not None:
            units.setdefault(module, EMBEDDINGS_AND_HEAD)
    return units


def carved_within_units(model: nn.Module, policy: Any, version: str) -> list[tuple[str, str]]:
    """Return what Accelerate carves out of a unit of the policy, with that unit: FSDP2 then stops.

    It makes the policy's units first, and these hold sharded parameters already.

    Args:
        model: The model; it is not changed.
        policy: What FSDP1's ``auto_wrap_policy`` is read as. None: the model's own ``_no_split_modules``.
        version: Accelerate's.

    Example:
        >>> model = nn.Sequential(nn.Sequential(nn.Embedding(2, 2), nn.LayerNorm(2)))
        >>> model.get_input_embeddings = lambda: model[0][0]
        >>> [carved_within_units(model, ClassWrap(classes=("Sequential",)), v) for v in ("1.13", "1.14")]
        [[], [('0.0', '0')]]
    """
    outer = {module: name for name, module in _by_policy(model, policy)}
    names = {module: name for name, module in model.named_modules()}
    carved = (each for each in accelerate_units(model, policy, version) if each not in outer)
    return [
        (names.get(module, "the embeddings"), name)
        for module in carved
        for unit, name in outer.items()
        if any(module is inner for inner in unit.modules()) and any(True for _ in module.parameters())
    ]


def unsaid_embeddings(model: nn.Module, version: str) -> list[str]:
    """Return the methods by which Accelerate asks for embeddings and head, and which raise.

    Example:
        >>> unsaid_embeddings(nn.Linear(2, 2), "1.15")
        []
    """
    asked = ("get_input_embeddings", "get_output_embeddings")
    return [
        name for name in asked if ACCELERATE["embeddings_apart"].holds(version) and _is_unsaid(model, name)
    ]


def _is_unsaid(model: nn.Module, method: str) -> bool:
    try:
        getattr(model, method, lambda: None)()
    except Exception:  # a model's own code; Accelerate calls it as it is, and stops at whatever it raises
        return True
    return False


def _by_policy(model: nn.Module, policy: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield what the policy makes units; it counts otherwise than FSDP1's where it goes by size."""
    below = ((name, module) for name, module in post_order(model) if module is not model)
    if isinstance(policy, SizeWrap):
        for name, module in below:
            if sum(each.numel() for each in module.parameters()) > policy.min_num_params:
                yield name, module
        return
    layers = getattr(model, "_no_split_modules", None) or () if policy is None else ()
    wanted = policy.classes if isinstance(policy, ClassWrap) else tuple(layers)
    classes = resolve_classes(wanted, model, required=False)
    yield from ((name, module) for name, module in below if isinstance(module, classes))


def _asked(model: nn.Module, method: str) -> nn.Module | None:
    try:
        found = getattr(model, method, lambda: None)()
    except Exception:  # a model's own code, which says in its own way that it has none
        return None
    return found if isinstance(found, nn.Module) else None


def _final_norm(model: nn.Module) -> nn.Module | None:
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else model
    if not isinstance(base, nn.Module):
        return None
    norms = [module for _, module in base.named_children() if "Norm" in type(module).__name__]
    return norms[-1] if norms else None
