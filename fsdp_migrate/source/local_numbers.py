"""Where a number is taken at once of a norm, a sum or a maximum: it is of one rank's part, as under FSDP1.

Each rank's part of a DTensor gives one that is still to be put together, of which ``.item()`` takes what this
rank has. What is computed with it first (``p.norm() ** 2``, a stack of several) is that of the whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.loops import loops_around
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.parameters import PARAMETERS
from fsdp_migrate.source.python.strategies import keeps_originals
from fsdp_migrate.source.sharded_parts import whole_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.text import Source


_OVER_A_COUNT: Final = (
    "this number is of this rank's part, as before, and numel() counts the whole parameter now: what is "
    "divided by that is too small. Take .full_tensor() of it, on every rank, before .item()."
)
_KEPT: Final = "stays: the number is taken at once, and is of this rank's part, as before"
_MEAN: Final = (
    "{}; of a parameter whose rows the ranks do not share evenly, mean() is of the whole, and waits for all"
)
_MEAN_OF_ONE: Final = (
    "one rank alone comes here, and of a parameter whose rows the ranks do not share evenly mean() waits for "
    "the others: take .to_local().mean(), which is of that rank's part, as before."
)
_OF_EACH: Final = (
    "{}. Without use_orig_params=True FSDP1 gave one for each flat parameter, and now each parameter has its "
    "own: what is summed or averaged over them is another number"
)
# Of these, what the parts give makes that of the whole, however it is cut.
_JOINED: Final = frozenset({"all", "amax", "amin", "any", "count_nonzero", "max", "min", "nansum", "sum"})
_PARTIAL: Final = frozenset(
    {
        *(
            "all",
            "amax",
            "amin",
            "any",
            "count_nonzero",
            "max",
            "mean",
            "min",
            "nansum",
            "norm",
            "prod",
            "sum",
        ),
        "vector_norm",
    }
)
_BY_VALUE: Final = frozenset({"isfinite", "isinf", "isnan"})
_KEEPS: Final = frozenset({"cpu", "cuda", "detach", "float"})
_NUMBERS: Final = frozenset({"bool", "float", "int"})
_COUNTS: Final = frozenset({"nelement", "numel"})
_COUNTING: Final = re.compile(r"(?i)(?:count|num).*param|param.*count")
_PUTS: Final = frozenset({"add", "append", "extend", "setdefault", "update"})
_ONES: Final = (cst.Float, cst.Integer)
_ASK_EACH: Final = frozenset({"all", "any"})
_TESTS: Final = (cst.Assert, cst.CompIf, cst.If, cst.IfExp, cst.While)
# What torch refuses of a part without an element.
_OF_SOME: Final = frozenset({"amax", "amin", "aminmax", "argmax", "argmin", "max", "min"})


def is_local_number(source: Source, call: cst.Call) -> bool:
    """Tell whether a number is taken at once of what a call gives: ``p.grad.norm().item()``."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
    above = source.index.parents[call]
    asked = source.index.parents[above] if name in _BY_VALUE and isinstance(above, cst.Attribute) else None
    if isinstance(asked, cst.Call) and asked.func is above:
        return is_local_number(source, asked)  # `torch.isnan(p.grad).any()`
    return name in _PARTIAL and _is_number(source, call)


def said_of_kept_number(source: Source, call: cst.Call) -> str:
    """Return why such a number stays, and of means and norms that FSDP1's were of flat parameters."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
    kept = _MEAN.format(_KEPT) if name == "mean" else _KEPT
    is_same = name in _JOINED | _BY_VALUE or _had_its_own(source, call)
    return kept if is_same else _OF_EACH.format(kept)


def _had_its_own(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether FSDP1 gave the model its own parameters of which a loop goes through each.

    Where what makes it is not seen, anything that asks for them is taken for that.
    """
    asked = (
        call.func.value
        for loop in loops_around(source.index, node)
        for call in walk_for(loop.iter, cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in PARAMETERS
    )
    wholes = [whole for each in asked if (whole := whole_of(source, each)) is not None]
    found = {keeps_originals(source.models, each) for each in wholes}
    if found and None not in found:
        return False not in found
    return source.links.keeps_names or catalog.MAY_KEEP_NAMES.search(source.code) is not None


def said_of_local_number(
    source: Source, call: cst.Call, is_parameter: Callable[[cst.BaseExpression], bool]
) -> str | None:
    """Return what is said of such a number: nothing, unless it is divided by a count. None if it is none.

    What ``p.numel()`` counts is of the whole parameter, where FSDP1's was of this rank's part.
    """
    if not is_local_number(source, call):
        return None
    is_mean = isinstance(call.func, cst.Attribute) and call.func.attr.value == "mean"
    if is_mean and runs_on_one_rank(source.index, source.models.guards, call):
        return _MEAN_OF_ONE
    home = source.index.function(call) or source.module
    if not any(walk_for(home, cst.Divide)) and not any(walk_for(home, cst.DivideAssign)):
        return ""
    counting = {each for each in walk_for(home, cst.Call) if _counts(source, each, is_parameter)}
    return _OVER_A_COUNT if counting and _are_divided(home, {call}, counting) else ""


def _are_divided(home: cst.CSTNode, numbers: set[cst.Call], counting: set[cst.Call]) -> bool:
    """Tell whether a function divides what is made of some calls by what is made of others."""
    above, below = _made_of(home, numbers), _made_of(home, counting)
    over = [
        (each.left, each.right)
        for each in walk_for(home, cst.BinaryOperation)
        if isinstance(each.operator, (cst.Divide, cst.FloorDivide))
    ]
    over += [
        (each.target, each.value)
        for each in walk_for(home, cst.AugAssign)
        if isinstance(each.operator, (cst.DivideAssign, cst.FloorDivideAssign))
    ]
    by_count = [left for left, right in over if _holds(right, counting, below)]
    # Of `1 / count`, by which a number may be multiplied, it is not followed any more.
    return any(_holds(left, numbers, above) or isinstance(left, _ONES) for left in by_count)


def _made_of(home: cst.CSTNode, calls: set[cst.Call]) -> set[str]:
    """Return the names of a function that hold what some calls give, or what is made of it."""
    found: set[str] = set()
    pairs = [(target, value) for target, value in _assigned(home)]
    size = -1
    while size < len(found):
        size = len(found)
        found.update(text_of(target) for target, value in pairs if _holds(value, calls, found))
    return found


def _assigned(home: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what a function gives its names, one by one: also what is put into a list, or gone through."""
    for assign in walk_for(home, cst.Assign):
        yield from ((part, assign.value) for each in assign.targets for part in _parts(each.target))
    for added in walk_for(home, cst.AugAssign):
        yield added.target, added.value
    for named in walk_for(home, cst.NamedExpr):
        yield named.target, named.value
    for loop in walk_for(home, cst.For):
        yield from ((part, loop.iter) for part in _parts(loop.target))
    for inner in walk_for(home, cst.CompFor):
        yield from ((part, inner.iter) for part in _parts(inner.target))
    for call in walk_for(home, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _PUTS:
            yield from ((call.func.value, arg.value) for arg in call.args)


def _parts(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the names that a target binds; of an item it is what holds it."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for each in target.elements:
            yield from _parts(each.value)
    else:
        yield target
        if isinstance(target, cst.Subscript):
            yield target.value


def _holds(value: cst.BaseExpression, calls: set[cst.Call], names: set[str]) -> bool:
    """Tell whether an expression has one of some calls in it, or one of some names."""
    if any(each in calls for each in walk_for(value, cst.Call)):
        return True
    kinds = (cst.Name, cst.Attribute, cst.Subscript)
    return bool(names) and any(text_of(each) in names for kind in kinds for each in walk_for(value, kind))


def _counts(source: Source, call: cst.Call, is_parameter: Callable[[cst.BaseExpression], bool]) -> bool:
    """Tell whether a call counts elements of parameters: by itself, or in the function that it calls."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")
    if isinstance(call.func, cst.Attribute) and name in _COUNTS:
        return is_parameter(call.func.value)
    functions = list(source.models.guards.functions(call.func))
    if not functions:
        return _COUNTING.search(name) is not None  # `count_parameters(model)` of another file
    return any(each.attr.value in _COUNTS for one in functions for each in walk_for(one, cst.Attribute))


def asks_whether_empty(source: Source, call: cst.Call) -> bool:
    """Tell whether a count is only asked to be none: ``if p.numel() > 0``, ``... if p.numel()``."""
    below: cst.CSTNode = call
    for above in source.index.ancestors(call):
        if isinstance(above, _TESTS):
            return above.test is below
        if isinstance(above, cst.Comparison):
            sides = {text_of(above.left), *(text_of(each.comparator) for each in above.comparisons)}
            if sides.isdisjoint({"0", "1"}):
                return False
        elif not isinstance(above, (cst.BooleanOperation, cst.UnaryOperation)):
            return False
        below = above
    return False


def takes_of_some(source: Source, call: cst.Call, is_parameter: Callable[[cst.BaseExpression], bool]) -> bool:
    """Tell whether the function around a call takes what an empty part has none of: ``p.max().item()``."""
    for each in walk_for(source.index.function(call) or source.module, cst.Call):
        func = each.func
        name = func.attr.value if isinstance(func, cst.Attribute) else ""
        given = [func.value, *(arg.value for arg in each.args[:1])] if isinstance(func, cst.Attribute) else []
        if name in _OF_SOME and any(map(is_parameter, given)) and is_local_number(source, each):
            return True
    return False


def within_local_numbers(source: Source, node: cst.CSTNode) -> set[cst.CSTNode]:
    """Return the attributes within such calls of an expression."""
    return set(_within(source, node))


def _within(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for call in walk_for(node, cst.Call):
        yield from walk_for(call, cst.Attribute) if is_local_number(source, call) else ()


def _is_number(source: Source, node: cst.BaseExpression, *, is_named: bool = False) -> bool:
    """Tell whether an expression is taken as a number, and for nothing else."""
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute):
        asked = source.index.parents[above]
        if not isinstance(asked, cst.Call) or asked.func is not above:
            return False
        is_kept = above.attr.value in _KEEPS and _is_number(source, asked, is_named=is_named)
        return above.attr.value == "item" or is_kept
    if isinstance(above, cst.Arg):
        function = source.index.parents[above]
        return isinstance(function, cst.Call) and dotted(function.func) in _NUMBERS
    if isinstance(above, cst.GeneratorExp):
        call = source.index.parents[source.index.parents[above]]
        return isinstance(call, cst.Call) and dotted(call.func) in _ASK_EACH
    if isinstance(above, cst.BooleanOperation):
        return _is_number(source, above, is_named=is_named)
    if isinstance(above, _TESTS):
        return above.test is node
    if isinstance(above, cst.UnaryOperation):
        return isinstance(above.operator, cst.Not)
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if is_named or not isinstance(target, cst.Name):
        return False
    readers = [each for each in source.readers(target) if each is not target]
    return bool(readers) and all(_is_number(source, each, is_named=True) for each in readers)
