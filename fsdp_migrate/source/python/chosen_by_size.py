"""Tests of a parameter's size that choose it: ``[p for p in model.parameters() if p.numel() > 1000]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_COUNTS: Final = frozenset({"nelement", "numel"})
_PUTS: Final = frozenset({"add", "append", "extend", "requires_grad_", "setdefault"})
_LISTS: Final = frozenset({"filter", "list", "set", "sorted", "tuple"})


def size_asked(index: Index, test: cst.Comparison) -> cst.BaseExpression | None:
    """Return the size that a test chooses parameters by, ``p.numel()`` or ``p.shape[0]``, if it is of one.

    Whether there is any of one on this rank is no question of its size: ``p.numel() == 0``.
    """
    if len(test.comparisons) != 1 or not _chooses(index, test):
        return None
    sides = [test.left, test.comparisons[0].comparator]
    sizes = [each for each in sides if _is_size(_held(index, each))]
    others = [each for each in sides if each not in sizes]
    is_any = any(isinstance(each, cst.Integer) and int(each.value, 0) <= 1 for each in others)
    if len(sizes) != 1 or is_any:
        return None
    return _held(index, sizes[0])


def _held(index: Index, node: cst.BaseExpression) -> cst.BaseExpression:
    held = last_value(index, node) if isinstance(node, cst.Name) and node in index.scopes else None
    return held if held is not None else node


def _is_size(node: cst.BaseExpression) -> bool:
    """Tell whether it is how many elements something has, or how many along one dimension."""
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape" and _is_place(node)
    func = node.func if isinstance(node, cst.Call) else None
    if not isinstance(func, cst.Attribute) or not isinstance(node, cst.Call):
        return False
    return func.attr.value in _COUNTS if not node.args else func.attr.value == "size" and len(node.args) == 1


def _is_place(node: cst.Subscript) -> bool:
    part = node.slice[0].slice if len(node.slice) == 1 else None
    value = part.value if isinstance(part, cst.Index) else None
    return isinstance(value.expression if isinstance(value, cst.UnaryOperation) else value, cst.Integer)


def _chooses(index: Index, test: cst.Comparison) -> bool:
    """Tell whether a test decides on what is put into a list, or trained: no counting and no printing."""
    for above in index.ancestors(test):
        if isinstance(above, cst.CompIf):
            return _makes_a_list(index, above)
        if isinstance(above, (cst.If, cst.IfExp)):
            return isinstance(above, cst.If) and any(_puts(branch) for branch in (above.body, above.orelse))
        if isinstance(above, cst.BaseStatement):
            return False
    return False


def _makes_a_list(index: Index, condition: cst.CompIf) -> bool:
    made = next(each for each in index.ancestors(condition) if isinstance(each, cst.BaseComp))
    arg = index.parents[made]
    call = index.parents[arg] if isinstance(arg, cst.Arg) else None
    return not isinstance(made, cst.GeneratorExp) or (
        isinstance(call, cst.Call) and dotted(call.func) in _LISTS
    )


def _puts(branch: cst.CSTNode | None) -> bool:
    if branch is None:
        return False
    called = (call.func for call in walk_for(branch, cst.Call) if isinstance(call.func, cst.Attribute))
    targets = (each.target for each in walk_for(branch, cst.AssignTarget))
    return any(func.attr.value in _PUTS for func in called) or any(
        isinstance(each, cst.Subscript)
        or (isinstance(each, cst.Attribute) and each.attr.value == "requires_grad")
        for each in targets
    )
