"""Names that are other names for something plain at a place, and are bound to sharded models elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import always_runs, values_set
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.wrappers import INNERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Key, ModelKinds
    from fsdp_migrate.source.python.scopes import Binding, Index


_INNER = frozenset({*catalog.WRAPPED, *INNERS, "_orig_mod"})
_LOOPS = (cst.For, cst.While)


def is_named_anew(models: ModelKinds, node: cst.BaseExpression) -> bool:
    """Tell whether a name stands for what is plain there, by the assignment that it has its value of.

    In ``m = self.vae`` and ``save(m)``, whatever ``m`` is bound to in other branches, and below.
    """
    key = models.key_of(node) if isinstance(node, cst.Name) and node in models.index.scopes else None
    if key is None or not isinstance(node, cst.Name):
        return False
    last = _reaching(models.index, node)
    value = last.value if last is not None else None
    if last is None or value is None or not _is_seen(models.index, value) or models.kinds(value):
        return False
    order, loops = models.index.order, _loops_since(models.index, last, node)
    return not any(
        order[last.node] < order[each] < order[node] or not loops.isdisjoint(models.index.ancestors(each))
        for each in _shown_at(models, key)
    )


def _reaching(index: Index, node: cst.Name) -> Binding | None:
    """Return the one assignment that a name has its value of, if it has others too: none comes between."""
    function, place = index.function(node), index.order[node]
    bindings = index.scopes[node].lookup(node.value)
    if len(bindings) == 1 or any(index.function(each.node) is not function for each in bindings):
        return None
    within = {node, *index.ancestors(node)}  # what is read in an assignment is what was there before it
    others = [each for each in index.bindings_of(node) if not _is_inner(each, node)]
    above = [each for each in others if index.order[each.node] < place and each.value not in within]
    last = max(above, key=lambda each: index.order[each.node], default=None)
    if last is None or last.index is not None or not always_runs(index, last, node):
        return None
    loops = _loops_since(index, last, node)
    comes_round = any(not loops.isdisjoint(index.ancestors(each.node)) for each in others)
    return None if comes_round else last


def _is_inner(binding: Binding, node: cst.Name) -> bool:
    """Tell whether an assignment leaves a name what it has, or gives it what that holds: ``m = m.module``."""
    value = binding.value if binding.index is None else None
    return (
        isinstance(value, cst.Attribute) and value.attr.value in _INNER and dotted(value.value) == node.value
    )


def _is_seen(index: Index, value: cst.BaseExpression) -> bool:
    """Tell whether it is a name, or an attribute of ``self``, of which the source shows what it is given."""
    if isinstance(value, cst.Attribute):
        return dotted(value.value) == "self" and bool(values_set(index, value))
    return isinstance(value, cst.Name) and value in index.scopes and bool(index.bindings_of(value))


def _loops_since(index: Index, binding: Binding, node: cst.Name) -> set[cst.CSTNode]:
    """Return the loops around a place that go round without the assignment."""
    around = {*index.ancestors(binding.node)}
    return {each for each in index.ancestors(node) if isinstance(each, _LOOPS) and each not in around}


def _shown_at(models: ModelKinds, key: Key) -> Iterator[cst.CSTNode]:
    """Yield where the source shows what a name holds, or a part of that, to be sharded."""
    for held in (models.made, models.evidence, models.added, models.inner):
        for (scope, text), places in held.items():
            if scope is key[0] and f"{text}.".startswith((f"{key[1]}.", f"{key[1]}[")):
                yield from places
