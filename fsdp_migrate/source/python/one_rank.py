"""Branches that one rank alone runs, such as ``if rank == 0:``; what all ranks must call hangs there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


_RANK = re.compile(r"(^|_)rank$")
_FOR_ALL = re.compile(r"fsdp|shard|zero_?[123]")
_DEEPEST = 4
_FIRST = re.compile(
    r"^(is_)?(local_|global_)?(main|master|rank_?0|rank_?zero)(_process|_node|_rank)?$|^is_logg(er|ing)_(process|rank)$"
)
_NODES = re.compile(r"local_?rank\W{0,8}==0|0==\w*local_?rank|not\W?\w*local_?rank|is_local_main")
_ONLY = re.compile(r"(^|\.)(rank_zero_only|on_main_process|master_only|rank0_only)$")


def is_of_one_rank(guards: Guards, node: cst.CSTNode) -> bool:
    """Tell whether a place is reached by one rank, or by one of each node, as far as names tell."""
    return any(_says_so(test, truth=truth) for test, truth in guards.facts(node))


def runs_on_one_rank(index: Index, guards: Guards, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether one rank alone reaches a place, also by the only calls of the method that it stands in."""
    if is_of_one_rank(guards, node):
        return True
    function = index.function(node)
    if function is None:
        return False
    decorators = (each.decorator for each in function.decorators)
    if any(_ONLY.search(dotted(e.func if isinstance(e, cst.Call) else e) or "") for e in decorators):
        return True
    calls = index.calls_of_method(function.name.value) if index.class_of(function) is not None else []
    return (
        depth < _DEEPEST
        and bool(calls)
        and all(
            index.function(each) is not function and runs_on_one_rank(index, guards, each, depth + 1)
            for each in calls
        )
    )


def saves_on_each_node(index: Index) -> bool:
    """Tell whether a branch of the first rank of each node saves: ``if local_rank == 0: torch.save(...)``."""
    choices = (cst.ensure_type(each, cst.If) for each in index.by_kind.get(cst.If, ()))
    return any(
        _NODES.search(text_of(each.test).lower()) is not None and "save" in text_of(each.body).lower()
        for each in choices
    )


def is_inner(index: Index, guards: Guards, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an expression may be the module within a wrapper, which one rank alone could ask.

    ``model.module``, ``model.module if many else model``, a name that holds one, a function that gives one.
    """
    if depth > _DEEPEST:
        return False
    if isinstance(node, cst.IfExp):
        return any(is_inner(index, guards, part, depth + 1) for part in (node.body, node.orelse))
    if isinstance(node, cst.Call):
        given = (each.value for f in guards.functions(node.func) for each in walk_for(f.body, cst.Return))
        return any(is_inner(index, guards, value, depth + 1) for value in given if value is not None)
    if isinstance(node, cst.Attribute) and node.attr.value == "module":
        return True
    if isinstance(node, cst.Attribute):
        value = last_value(index, node)
        return value is not None and is_inner(index, guards, value, depth + 1)
    bindings = (
        index.scopes[node].lookup(node.value) if isinstance(node, cst.Name) and node in index.scopes else ()
    )
    values = (each.value for each in bindings if each.index is None and each.value is not None)
    return any(is_inner(index, guards, value, depth + 1) for value in values)


def _says_so(test: cst.BaseExpression, *, truth: bool) -> bool:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _says_so(test.expression, truth=not truth) or (truth and _is_rank(test.expression))
    if isinstance(test, cst.BooleanOperation):
        # `rank == 0 or args.all` lets one rank alone in, too; `rank == 0 or use_fsdp` is there to prevent it.
        is_all = isinstance(test.operator, cst.And) is truth
        if not is_all and any(_lets_all_in(part, truth=truth) for part in (test.left, test.right)):
            return False
        return any(_says_so(part, truth=truth) for part in (test.left, test.right))
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        other = test.comparisons[0]
        sides = (test.left, other.comparator)
        is_zero = any(text_of(side) in {"0", '"0"', "'0'"} for side in sides)
        is_same = isinstance(other.operator, cst.Equal if truth else cst.NotEqual)
        return is_same and is_zero and any(map(_is_rank, sides))
    return truth and _FIRST.match(_last(test)) is not None


def _lets_all_in(test: cst.BaseExpression, *, truth: bool) -> bool:
    """Tell whether a test is ``truth`` where models are sharded, on each rank."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _lets_all_in(test.expression, truth=not truth)
    return truth and _FOR_ALL.search(text_of(test).lower()) is not None


def _is_rank(node: cst.BaseExpression) -> bool:
    return _RANK.search(_last(node)) is not None


def _last(node: cst.BaseExpression) -> str:
    """Return the last part of a name, or of that of a function that is called without arguments."""
    if isinstance(node, cst.Call):
        return _last(node.func) if not node.args else ""
    return (dotted(node) or "").split(".")[-1].lower().lstrip("_")
