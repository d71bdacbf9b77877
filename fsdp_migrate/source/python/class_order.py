"""Which of two places in the methods of a class runs first, as the calls of its methods among them tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


INIT: Final = "__init__"
_DEEPEST: Final = 4


def runs_first(index: Index, one: cst.CSTNode, other: cst.CSTNode) -> bool | None:
    """Tell whether a place always runs before another of the same class; None where nothing tells.

    ``self.collect()`` above ``self.shard()`` in any method shows that ``collect`` runs before ``shard``. What
    the constructor runs comes before a method that it does not run.
    """
    owner = index.class_of(one)
    if owner is None or index.class_of(other) is not owner:
        return None
    said = [told for each in _methods(owner) if (told := _in_method(index, each, one, other)) is not None]
    if said:
        return all(said)
    return True if _is_run_by_init(index, owner, one) and not _is_run_by_init(index, owner, other) else None


def _methods(owner: cst.ClassDef) -> list[cst.FunctionDef]:
    return [each for each in owner.body.body if isinstance(each, cst.FunctionDef)]


def _in_method(index: Index, method: cst.FunctionDef, one: cst.CSTNode, other: cst.CSTNode) -> bool | None:
    """Tell whether a method runs one place before the other; None where it does not run both."""
    first, then = places_in(index, method, one), places_in(index, method, other)
    if not first or not then or any(index.excludes(a, b) for a in first for b in then):
        return None
    if set(first) & set(then):
        return None  # the same call runs both: the method that it runs tells
    return max(index.order[each] for each in first) < min(index.order[each] for each in then)


def places_in(index: Index, method: cst.FunctionDef, node: cst.CSTNode, depth: int = 0) -> list[cst.CSTNode]:
    """Return where a method runs a place: the place, or the calls of its object's methods that lead there."""
    own = index.function(node)
    if own is method:
        return [node]
    if own is None or depth == _DEEPEST:
        return []
    found: list[cst.CSTNode] = []
    for call in index.calls_of_method(own.name.value):
        caller = index.function(call)
        is_of_self = (dotted(call.func) or "") in {f"self.{own.name.value}", f"super().{own.name.value}"}
        if not is_of_self or caller is own or index.class_of(call) is not index.class_of(own):
            continue
        found += places_in(index, method, call, depth + 1)
    return found


def _is_run_by_init(index: Index, owner: cst.ClassDef, node: cst.CSTNode) -> bool:
    made = next((each for each in _methods(owner) if each.name.value == INIT), None)
    return made is not None and bool(places_in(index, made, node))
