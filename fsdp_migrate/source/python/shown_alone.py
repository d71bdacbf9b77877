"""Numbers that are only shown to people: printed, logged, put into a text. Nothing is computed by them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, text_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.source.python.text import Source


_SHOWS = re.compile(
    r"^(?:print\w*|pprint|log\w*|debug|info|warning|warn|error|add_scalars?|set_postfix|set_description|write|report\w*)$"
)
# What a number goes through on its way: a number again, or a text.
_NUMBERS = frozenset(
    {"abs", "float", "format", "int", "math.sqrt", "max", "min", "repr", "round", "sqrt", "str", "sum"}
)
_SAME = frozenset(
    {"abs", "cpu", "detach", "float", "format", "item", "max", "mean", "min", "norm", "sqrt", "std", "sum"}
)
# What is no matter of its values.
_NO_VALUES = frozenset({"device", "dtype"})
# `math.log` and `torch.log` show nothing.
_COMPUTE = frozenset({"cmath", "jax", "math", "np", "numpy", "torch"})
_RECORDS = re.compile(r"(?:^|_)(?:logs?|metrics?|records?|stats?)$")
_DEEPEST = 3


def is_shown_alone(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether what an expression gives ends in ``print``, a logger or a text, wherever it goes."""
    below: cst.CSTNode = node
    for above in source.index.ancestors(node):
        answer = _shows(source, below, above, depth)
        if answer is not None:
            return answer
        below = above
    return False


def is_asked_to_show(source: Source, test: cst.BaseExpression) -> bool:
    """Tell whether a question decides on what is shown alone: ``if p.ndim > 1: print(n)``."""
    below: cst.CSTNode = test
    for above in source.index.ancestors(test):
        if isinstance(above, cst.If):
            other = above.orelse.body if isinstance(above.orelse, cst.Else) else None
            blocks = [above.body] if above.orelse is None else [above.body, other]
            return above.test is below and all(_shows_alone(source, each) for each in blocks)
        if not isinstance(above, (cst.BooleanOperation, cst.UnaryOperation)):
            return False
        below = above
    return False


def _shows_alone(source: Source, block: cst.BaseSuite | None) -> bool:
    """Tell whether a block prints, logs or counts what is printed, and nothing else."""
    lines = [part for line in block.body for part in _parts(line)] if block is not None else []
    return bool(lines) and all(
        (isinstance(part, cst.Expr) and _is_of_people(source, part.value))
        or (isinstance(part, cst.AugAssign) and is_shown_alone(source, part.value))
        for part in lines
    )


def _parts(line: cst.CSTNode) -> Sequence[cst.CSTNode]:
    return line.body if isinstance(line, cst.SimpleStatementLine) else [line]


def _is_of_people(source: Source, node: cst.BaseExpression) -> bool:
    name = last_name(node.func) if isinstance(node, cst.Call) else ""
    is_shown = isinstance(node, cst.Call) and _SHOWS.match(name) is not None
    return is_shown and isinstance(node, cst.Call) and not _computes(source, node.func)


def _shows(source: Source, below: cst.CSTNode, above: cst.CSTNode, depth: int) -> bool | None:
    """Tell whether a node shows what is in it, and to nobody else; None where it hands it on."""
    if isinstance(above, (cst.FormattedStringExpression, cst.Expr)):
        return True
    if isinstance(above, cst.Call) and below is not above.func:
        name = dotted(above.func) or ""
        # What is called `log_prior` gives a number again.
        is_for_people = _SHOWS.match(name.split(".")[-1]) is not None and not _is_used(source, above)
        is_for_people = is_for_people and not _computes(source, above.func)
        return True if is_for_people else None if name in _NUMBERS else False
    if isinstance(above, cst.Attribute):
        if above.attr.value in _NO_VALUES:
            return True
        call = source.index.parents[above]
        is_same = above.attr.value in _SAME and isinstance(call, cst.Call) and call.func is above
        return None if is_same else False
    if isinstance(above, cst.Assign):
        return all(_is_shown(source, each.target, depth) for each in above.targets)
    if isinstance(above, cst.AugAssign):
        return _is_shown(source, above.target, depth)
    others = (cst.BaseStatement, cst.BaseSmallStatement, cst.Comparison, cst.Lambda, cst.NamedExpr, cst.Yield)
    return False if isinstance(above, others) else None


def _is_used(source: Source, call: cst.Call) -> bool:
    """Tell whether something is done with what a call gives."""
    above: cst.CSTNode = source.index.parents[call]
    while isinstance(above, (cst.Await, cst.BooleanOperation, cst.IfExp)):
        above = source.index.parents[above]
    return not isinstance(above, (cst.Expr, cst.Lambda))


def _computes(source: Source, func: cst.BaseExpression) -> bool:
    names = {*source.index.qualified(func), dotted(func) or ""}
    return any(each.split(".")[0] in _COMPUTE for each in names)


def _is_shown(source: Source, target: cst.BaseExpression, depth: int) -> bool:
    """Tell whether what a name holds is only shown; a record of metrics is there for that."""
    if isinstance(target, cst.Subscript):
        is_record = _RECORDS.search(last_name(target.value).lower()) is not None
        return is_record and _is_read_to_be_shown(source, target, depth)
    if not isinstance(target, cst.Name) or target not in source.index.scopes or depth >= _DEEPEST:
        return False
    parents = source.index.parents
    readers = [each for each in source.readers(target) if not isinstance(parents[each], cst.AugAssign)]
    return bool(readers) and all(is_shown_alone(source, each, depth + 1) for each in readers)


def _is_read_to_be_shown(source: Source, target: cst.Subscript, depth: int) -> bool:
    """Tell whether a record is only shown where the source reads it by the same key: ``stats["norm"]``."""
    text, parents = text_of(target), source.index.parents
    subscripts = (each for each in source.index.by_kind.get(cst.Subscript, ()) if each is not target)
    read = [
        each
        for each in subscripts
        if isinstance(each, cst.Subscript)
        and not isinstance(parents[each], (cst.AssignTarget, cst.AugAssign))
        and text_of(each) == text
    ]
    return depth < _DEEPEST and all(is_shown_alone(source, each, depth + 1) for each in read)
