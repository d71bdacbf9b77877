"""Objects that shard parts of themselves: ``self.part = FSDP(part)``, and then ``self.parameters()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.asked_classes import is_fsdp1_among
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.model_kinds import ModelKinds


def holds_models(models: ModelKinds, node: cst.BaseExpression, kinds: set[str]) -> bool:
    """Tell whether an expression has sharded models in it, by what it is, or as ``self`` of a class."""
    return has_model({kind for kind in kinds if kind.startswith(".")}) or _has_sharded_parts(models, node)


def _has_sharded_parts(models: ModelKinds, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is ``self`` of a class that has sharded models, where it has them."""
    owner = models.index.class_of(node) if dotted(node) == "self" else None
    if owner is None:
        return False
    return any(
        has_model(models.facts.get((owner, text), ())) and not _is_set_below(models, owner, text, node)
        for text in models.attributes.get(owner, ())
    )


def _is_set_below(models: ModelKinds, owner: cst.ClassDef, text: str, node: cst.BaseExpression) -> bool:
    """Tell whether the same method sets an attribute, and only below a place."""
    order, function = models.index.order, models.index.function(node)
    made = models.made.get((owner, text), [])
    here = [each for each in made if models.index.function(each) is function]
    return bool(here) and len(here) == len(made) and all(order[each] > order[node] for each in here)


def holder_of(models: ModelKinds, part: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model that something is sharded with, as it stands there: ``model`` of ``model.head``.

    ``pair.net.inner.load_state_dict(x)`` above ``pair.net = FSDP(pair.net)`` has none in ``pair``, which is
    known by its parts alone: ``pair.other`` may be sharded by then.
    """
    holder = models.sharded_with(part)
    while holder is not None and _is_wrapped_below(models, part, holder):
        part, holder = holder, models.sharded_with(holder)
    return holder


def _is_wrapped_below(models: ModelKinds, part: cst.BaseExpression, holder: cst.BaseExpression) -> bool:
    """Tell whether a part of a holder, of which parts alone are sharded, is only wrapped below."""
    key, own = models.key_of(holder), models.key_of(part)
    if key is None or own is None or not models.made.get(own) or key in models.evidence:
        return False
    if "*" in models.wholes.get(key, "*") or not models.is_before_wrapping(part):
        return False
    return models.is_wrapped_in_parts_alone(holder)


def is_held_otherwise(models: ModelKinds, node: cst.CSTNode) -> bool:
    """Tell whether it is what another wrapper holds, ``model.module``, by the name that was given it too.

    ``self.inner = self.model._fsdp_wrapped_module`` is plain where ``self.model`` is none of FSDP1's.
    """
    if isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED:
        return models.is_other_branch(node.value)
    if not isinstance(node, (cst.Attribute, cst.Name)) or node not in models.index.scopes:
        return False
    held = last_value(models.index, node)
    if not isinstance(held, cst.Attribute) or held.attr.value not in catalog.WRAPPED:
        return False
    return models.guards.is_excluded(node, text_of(held.value), is_fsdp1_among(models.index))


def of_its_wrapper(models: ModelKinds, node: cst.Name | cst.Attribute, found: set[str]) -> set[str]:
    """Return what a name is above ``m = m.module``, which takes out what ``m = Wrapper(...)`` held."""
    is_both = isinstance(node, cst.Name) and "fsdp" in found and any(k.startswith(".module>") for k in found)
    made = last_value(models.index, node) if is_both else None
    kinds = models.kinds(made) if isinstance(made, cst.Call) else {"fsdp"}
    return found if "fsdp" in kinds else kinds
