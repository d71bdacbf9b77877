"""Counts of parameters with or without a gradient: ``sum(p.grad is None for p in model.parameters())``.

FSDP1 gave no gradient to a parameter of which a rank had no part in its flat one. Measured, two ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source


UNCOUNTED: Final = (
    "under FSDP1 a parameter of which this rank had no part had no gradient: it counted as one that was not "
    "used. Now a parameter has none only where nothing used it: this number is another one. Leave it, and do "
    "not compare it with FSDP1's."
)
_COMPREHENSIONS: Final = (cst.GeneratorExp, cst.ListComp, cst.SetComp)
_COUNTS: Final = frozenset({"len", "sum"})
_SIZES: Final = frozenset({"dim", "nbytes", "ndim", "nelement", "numel", "shape", "size"})
_HANDED_ON: Final = (cst.Arg, cst.BooleanOperation, cst.CompFor, cst.CompIf, cst.UnaryOperation)


def counts_of_gradients(values: ParameterValues) -> Iterator[cst.BaseExpression | cst.AugAssign]:
    """Yield what counts a sharded model's parameters by whether they have a gradient."""
    source = values.source
    for node in source.index.by_kind.get(cst.Comparison, ()):
        test = cst.ensure_type(node, cst.Comparison)
        if _asks_for_gradient(test) and values.is_one(test.left) and not source.contexts.is_summoned(test):
            yield from _counted(source, test)


def _asks_for_gradient(test: cst.Comparison) -> bool:
    """Tell whether it is ``p.grad is None``, or ``is not None``."""
    if (
        not isinstance(test.left, cst.Attribute)
        or test.left.attr.value != "grad"
        or len(test.comparisons) > 1
    ):
        return False
    [other] = test.comparisons
    return isinstance(other.operator, (cst.Is, cst.IsNot)) and dotted(other.comparator) == "None"


def _counted(source: Source, test: cst.Comparison) -> Iterator[cst.Call | cst.AugAssign]:
    """Yield the count that a test decides on: of a comprehension, or of ``if p.grad is None: count += 1``."""
    gradient = text_of(test.left)
    for above in source.index.ancestors(test):
        if isinstance(above, cst.If):
            yield from _added_in(source, above, gradient)
            return
        if isinstance(above, _COMPREHENSIONS):
            call = source.index.parents[above]
            call = source.index.parents[call] if isinstance(call, cst.Arg) else call
            is_count = isinstance(call, cst.Call) and dotted(call.func) in _COUNTS
            if isinstance(call, cst.Call) and is_count and not _adds_values(source, call, above, test):
                yield call
            return
        if isinstance(above, cst.BooleanOperation) and _asks_for_its_values(above, gradient):
            return
        is_number = isinstance(above, cst.Call) and dotted(above.func) in {"bool", "int"}
        if not is_number and not isinstance(above, _HANDED_ON):
            return


def _adds_values(source: Source, call: cst.Call, made: cst.BaseExpression, test: cst.Comparison) -> bool:
    """Tell whether a sum is of what gradients hold, and leaves out those that are none: a norm by hand."""
    if dotted(call.func) != "sum" or not isinstance(made, _COMPREHENSIONS):
        return False
    held = [each for each in walk_for(made.elt, cst.Attribute) if text_of(each) == text_of(test.left)]
    above = [source.index.parents[each] for each in held if each is not test.left]
    return any(not isinstance(each, cst.Attribute) or each.attr.value not in _SIZES for each in above)


def _added_in(source: Source, choice: cst.If, gradient: str) -> Iterator[cst.AugAssign]:
    """Yield where a number grows by one in a branch, whatever the gradient's values are."""
    for added in walk_for(choice, cst.AugAssign):
        between = []
        for above in source.index.ancestors(added):
            if above is choice:
                break
            between.append(above)
        tests = [each.test for each in between if isinstance(each, cst.If)]
        is_repeated = any(isinstance(each, (cst.For, cst.While, cst.FunctionDef)) for each in between)
        asks_more = any(gradient in text_of(each) for each in tests)
        if _adds_one(added) and not is_repeated and not asks_more and not _is_a_place(source, added):
            yield added


def _is_a_place(source: Source, added: cst.AugAssign) -> bool:
    """Tell whether a number is read as a place in a list alone: ``p.grad.copy_(grads[i]); i += 1``."""
    home, name = source.index.function(added), text_of(added.target)
    named = [each for each in walk_for(home or source.module, cst.Name) if each.value == name]
    above = [source.index.parents[each] for each in named]
    reads = [each for each in above if not isinstance(each, (cst.AssignTarget, cst.AugAssign))]
    return bool(reads) and all(isinstance(each, cst.Index) for each in reads)


def _asks_for_its_values(operation: cst.BooleanOperation, gradient: str) -> bool:
    """Tell whether a test beside it is about what a gradient holds: ``and p.grad.isnan().any()``.

    Of such only those are counted that have one, and under FSDP1 it was a part of it that was asked.
    """
    sides = (operation.left, operation.right)
    asks = [any(text_of(each) == gradient for each in walk_for(side, cst.Attribute)) for side in sides]
    return isinstance(operation.operator, cst.And) and all(asks)


def _adds_one(added: cst.AugAssign) -> bool:
    return isinstance(added.operator, cst.AddAssign) and isinstance(added.value, cst.Integer)
