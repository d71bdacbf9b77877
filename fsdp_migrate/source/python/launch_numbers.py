"""Numbers and words that say how Accelerate was launched: ``stage = 3`` with the plugin, else ``0``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, literal


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.scopes import Index

    Said = Callable[[cst.BaseExpression, bool], bool | None]


_MOST: Final = 8
_UNKNOWN: Final = object()
_EQUAL: Final = (cst.Equal, cst.Is)
_UNEQUAL: Final = (cst.NotEqual, cst.IsNot)


def said_by_value(index: Index, test: cst.BaseExpression, *, truth: bool, said: Said) -> bool | None:
    """Return whether FSDP runs where a test of a name is ``truth``, by where the name is given its values.

    Each value that the test leaves has to stand where the answer is the same.

    Args:
        index: The source.
        test: The test: ``stage != 0``, ``stage > 1``, or ``stage``.
        truth: What it came out as.
        said: Returns the answer that another test gives, with what that came out as.
    """
    asked = _asked(test)
    if asked is None:
        return None
    name, holds = asked
    answers: set[bool | None] = set()
    for number, (value, place) in enumerate(_values(index, name)):
        if number == _MOST or value is _UNKNOWN:
            return None
        if holds(value) is truth:
            at = _said_at(index, place, said)
            answers.add(_said_since(index, place, dotted(name) or "", said) if at is None else at)
    return answers.pop() if len(answers) == 1 else None


def _said_at(index: Index, place: cst.CSTNode, said: Said) -> bool | None:
    """Return the answer of the choices around a place."""
    below = place
    for above in index.ancestors(place):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return None
        if isinstance(above, (cst.If, cst.IfExp)) and below is not above.test:
            found = said(above.test, below is above.body)
            if found is not None:
                return found
        below = above
    return None


def _said_since(index: Index, place: cst.CSTNode, name: str, said: Said) -> bool | None:
    """Return the answer where another one would have set a name anew: ``n = 0``, ``if fsdp: n = 3``."""
    line = next((each for each in index.ancestors(place) if isinstance(each, cst.SimpleStatementLine)), None)
    block = index.parents.get(line) if line is not None else None
    body = block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ()
    since = False
    for each in body:
        if since and isinstance(each, cst.If) and _always_sets(each.body, name):
            found = said(each.test, True)
            if found is not None:
                return not found
        since = since or each is line
    return None


def _always_sets(branch: cst.CSTNode | None, name: str) -> bool:
    """Tell whether a branch gives a name a value, whatever it chooses."""
    if isinstance(branch, cst.Else):
        return _always_sets(branch.body, name)
    if isinstance(branch, cst.If):
        return _always_sets(branch.body, name) and _always_sets(branch.orelse, name)
    if isinstance(branch, cst.SimpleStatementLine):
        assigns = (each for each in branch.body if isinstance(each, cst.Assign))
        return any(dotted(target.target) == name for each in assigns for target in each.targets)
    body = branch.body if isinstance(branch, cst.IndentedBlock) else ()
    return any(_always_sets(each, name) for each in body)


def _asked(
    test: cst.BaseExpression,
) -> tuple[cst.Name | cst.Attribute, Callable[[object], bool]] | None:
    """Return the name that a test asks, and what tells whether it is true of a value."""
    if isinstance(test, (cst.Name, cst.Attribute)):
        return test, bool
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    operator, other = test.comparisons[0].operator, _constant(test.comparisons[0].comparator)
    if not isinstance(test.left, (cst.Name, cst.Attribute)) or other is _UNKNOWN:
        return None
    if isinstance(operator, _EQUAL):
        return test.left, lambda value: value == other
    if isinstance(operator, _UNEQUAL):
        return test.left, lambda value: value != other
    if isinstance(other, int) and isinstance(operator, cst.GreaterThan):
        return test.left, lambda value: isinstance(value, int) and value > other
    if isinstance(other, int) and isinstance(operator, cst.GreaterThanEqual):
        return test.left, lambda value: isinstance(value, int) and value >= other
    return None


def _constant(node: cst.BaseExpression | None) -> object:
    """Return a number, a text, a truth or None as it is; a mark of its own for all else."""
    if isinstance(node, (cst.Integer, cst.SimpleString)):
        return node.evaluated_value
    if isinstance(node, cst.Name) and node.value == "None":
        return None
    known = literal(node)
    return _UNKNOWN if known is None else known


def _values(index: Index, name: cst.Name | cst.Attribute) -> Iterator[tuple[object, cst.CSTNode]]:
    """Yield what a name is given, with what stands there."""
    for value in _set(index, name):
        for part in [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]:
            yield _constant(part), name if part is None else part


def _set(index: Index, name: cst.Name | cst.Attribute) -> Iterator[cst.BaseExpression | None]:
    if isinstance(name, cst.Name):
        for binding in index.scopes[name].lookup(name.value) if name in index.scopes else ():
            yield binding.value if binding.index is None else None
        return
    owner, text = index.class_of(name), dotted(name) or ""
    for place in index.places_set(text) if owner is not None and text.startswith("self.") else ():
        above = index.parents[place]
        is_its = isinstance(above, cst.Assign) and index.class_of(above) is owner
        yield above.value if is_its and isinstance(above, cst.Assign) else None
