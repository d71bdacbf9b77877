"""What a name or an attribute of ``self`` holds at a place, where the source shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, kept, placed_parameters, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Binding, Index


_MOST_NAMES = 2
# Contexts that take up what is raised in them.
_TAKES_UP = re.compile(r"(?i)suppress|raises|ignor|catch(?!_warnings)|fail")


def seen_value(index: Index, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what a name, or an attribute, holds here; None of anything else, and of nobody's names."""
    is_seen = isinstance(node, cst.Attribute) or node in index.scopes
    return last_value(index, node) if isinstance(node, (cst.Attribute, cst.Name)) and is_seen else None


@kept
def last_value(index: Index, node: cst.Name | cst.Attribute) -> cst.BaseExpression | None:
    """Return the expression whose value a name or ``self.name`` holds here, or None where that is in doubt.

    Of a name that is assigned more than once it is the last assignment before, if that is always run.
    """
    if isinstance(node, cst.Attribute):
        values = values_set(index, node)
        return values[0] if len(values) == 1 else None
    # What is read in the value of an assignment is what was there before it: `params = list(params)`.
    above = {node, *index.ancestors(node)}
    bindings = [each for each in index.scopes[node].lookup(node.value) if each.value not in above]
    if len(bindings) == 1:
        return bindings[0].value if bindings[0].index is None else None
    function, place = index.function(node), index.order[node]
    if any(index.function(each.node) is not function for each in bindings):
        return None
    before = [each for each in bindings if index.order[each.node] < place]
    last = max(before, key=lambda each: index.order[each.node], default=None)
    if last is None or last.value is None or last.index is not None or not always_runs(index, last, node):
        return None
    return last.value


def values_reaching(index: Index, node: cst.Name) -> list[tuple[cst.BaseExpression, cst.CSTNode]]:
    """Return what a name may hold where branches come together, with the targets: none if one is not seen.

    ``g = p.grad``, ``if x: g = g * 2``: the last assignment that was surely run, and those in branches since.
    """
    above, place = {node, *index.ancestors(node)}, index.order[node]
    bindings = [each for each in index.bindings_of(node) if each.value not in above]
    if any(index.function(each.node) is not index.function(node) for each in bindings):
        return []
    before = [each for each in bindings if index.order[each.node] < place]
    found: list[tuple[cst.BaseExpression, cst.CSTNode]] = []
    for each in sorted(before, key=lambda each: index.order[each.node], reverse=True):
        if each.value is None or each.index is not None:
            return []
        found.append((each.value, each.node))
        if always_runs(index, each, node):
            break
    return found


def assigned_at(index: Index, target: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the value of the assignment that a name is the whole target of."""
    above = index.parents[target]
    made = index.parents[above] if isinstance(above, cst.AssignTarget) else above
    return made.value if isinstance(made, (cst.AnnAssign, cst.Assign, cst.NamedExpr)) else None


def values_set(index: Index, node: cst.Attribute) -> list[cst.BaseExpression]:
    """Return the values that the class around gives an attribute of its objects, ``self.model``."""
    text, owner = dotted(node) or "", index.class_of(node)
    if owner is None or not text.startswith("self."):
        return []
    assigns = [index.parents[each] for each in index.places_set(text)]
    return [a.value for a in assigns if isinstance(a, cst.Assign) and index.class_of(a) is owner]


def value_in_class(index: Index, node: cst.Attribute) -> cst.BaseExpression | None:
    """Return what the body of the class around gives ``self.name``; None where it may be set elsewhere."""
    owner, name = index.class_of(node), node.attr.value
    if owner is None or dotted(node) != f"self.{name}":
        return None
    if index.places_set(f"self.{name}") or index.places_set(f"{owner.name.value}.{name}"):
        return None
    # Of every class here: one that derives from this may have another value.
    classes = [cst.ensure_type(each, cst.ClassDef) for each in index.by_kind.get(cst.ClassDef, ())]
    values = [(each, value) for each in classes for value in _values_in_body(each, name)]
    return values[0][1] if len(values) == 1 and values[0][0] is owner else None


def _values_in_body(owner: cst.ClassDef, name: str) -> Iterator[cst.BaseExpression | None]:
    for line in owner.body.body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(part, cst.Assign):
                targets = [each.target for each in part.targets]
            elif isinstance(part, cst.AnnAssign):
                targets = [part.target]
            else:
                continue
            if any(dotted(each) == name for each in targets):
                yield part.value


def renamed_as(
    index: Index, name: cst.Name, functions: Callable[[cst.CSTNode], Iterable[cst.FunctionDef]]
) -> Iterator[cst.BaseExpression]:
    """Yield what a name is another name for here, in each branch: ``step = train if x else test``.

    Args:
        index: The source.
        name: The name.
        functions: Returns the functions that a call may run: one may give others, ``step = make_step(x)``.
    """
    values = [(each.value, each.index) for each in index.bindings_of(name) if each.value is not None]
    if len(values) > 1 and (last := last_value(index, name)) is not None:
        values = [(last, None)]
    for value, place in values:
        for part in _named_by(index, value, place, functions):
            if dotted(part) != name.value or index.function(part) is not index.function(name):
                yield part


def _named_by(
    index: Index,
    value: cst.BaseExpression,
    place: int | None,
    functions: Callable[[cst.CSTNode], Iterable[cst.FunctionDef]],
) -> Iterator[cst.Name | cst.Attribute]:
    """Yield the names that a value is, or the part of it at a place: also of a partial, and of a call."""
    if isinstance(value, cst.IfExp):
        for part in (value.body, value.orelse):
            yield from _named_by(index, part, place, functions)
    elif isinstance(value, (cst.List, cst.Tuple)) and place is not None:
        parts = value.elements[: place + 1]
        if len(parts) > place and all(isinstance(each, cst.Element) for each in parts):
            yield from _named_by(index, parts[place].value, None, functions)
    elif isinstance(value, (cst.Attribute, cst.Name)) and place is None:
        yield value
    elif isinstance(value, cst.Call):
        for given, inner in _given_by(index, value, place, functions):
            yield from _named_by(index, given, inner, functions)


def _given_by(
    index: Index,
    call: cst.Call,
    place: int | None,
    functions: Callable[[cst.CSTNode], Iterable[cst.FunctionDef]],
) -> Iterator[tuple[cst.BaseExpression, int | None]]:
    """Yield what a call gives that may be a function, or a tuple with one at a place."""
    if "functools.partial" in index.qualified(call.func):
        # What is given by its place would stand before what a call gives.
        if place is None and len([arg for arg in call.args if arg.keyword is None]) == 1:
            yield call.args[0].value, None
        return
    for function in functions(call.func):
        for given in walk_for(function.body, cst.Return):
            if given.value is not None and index.function(given) is function:
                yield given.value, place


def stands_for(index: Index, guards: Guards, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what a name may hold, ``.module`` left out: the values of names, and what calls here give."""
    for binding in index.scopes[name].lookup(name.value) if name in index.scopes else ():
        value = binding.value if binding.index is None else None
        if isinstance(value, cst.Attribute) and value.attr.value in catalog.WRAPPED:
            value = value.value
        if isinstance(value, (cst.Name, cst.Attribute)):
            yield value
        if binding.kind == "param":
            yield from _given(index, guards, name)


def _given(index: Index, guards: Guards, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what the calls of this source give to a parameter of the function around a name, by its place."""
    function = index.function(name)
    names = [each.name.value for each in placed_parameters(function)] if function is not None else []
    if function is None or name.value not in names or "self" in names:
        return
    place = names.index(name.value)
    for call in guards.calls.get(function, ()):
        given = call.args[: place + 1]
        if len(given) > place and not any(arg.star or arg.keyword for arg in given):
            yield given[-1].value


@kept
def functions_called(index: Index, func: cst.CSTNode) -> tuple[cst.FunctionDef, ...]:
    """Return the functions of a source that a call may run, by their own or by another name."""
    return tuple(_functions_called(index, func, 0))


def _functions_called(index: Index, func: cst.CSTNode, depth: int) -> Iterator[cst.FunctionDef]:
    if type(func) is cst.Name and func in index.scopes:
        for binding in index.scopes[func].lookup(func.value):
            if type(binding.node) is cst.FunctionDef:
                yield binding.node
        if depth < _MOST_NAMES:
            for value in renamed_as(index, func, lambda each: _functions_called(index, each, depth + 1)):
                yield from _functions_called(index, value, depth + 1)
    elif type(func) is cst.Attribute and dotted(func.value) in {"self", "cls"}:
        owner = index.class_of(func)
        for item in owner.body.body if owner is not None else ():
            if isinstance(item, cst.FunctionDef) and item.name.value == func.attr.value:
                yield item


def calls_by_function(index: Index) -> dict[cst.FunctionDef, list[cst.Call]]:
    """Return the calls of each function of a source by a name, in order."""
    found: dict[cst.FunctionDef, list[cst.Call]] = {}
    for call in index.by_kind.get(cst.Call, ()):
        assert isinstance(call, cst.Call)
        for function in set(functions_called(index, call.func)) if type(call.func) is cst.Name else ():
            found.setdefault(function, []).append(call)
    return found


def always_runs(index: Index, binding: Binding, node: cst.CSTNode) -> bool:
    """Tell whether an assignment stands in a block that the place stands in too: then it was run."""
    return was_run(index, binding.node, node)


def was_run(index: Index, line: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Tell whether what stands above a place stands in a block that the place stands in too."""
    blocks = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)
    around = (a for a in index.ancestors(line) if isinstance(a, blocks) and not _is_of_a_context(index, a))
    block = next(around, None)
    return block is not None and block in set(index.ancestors(node))


def _is_of_a_context(index: Index, block: cst.CSTNode) -> bool:
    """Tell whether a block is that of a ``with``, which runs to its end wherever what is below it runs."""
    above = index.parents.get(block)
    if not isinstance(above, cst.With):
        return False
    asked = [text_of(each.item.func) for each in above.items if isinstance(each.item, cst.Call)]
    return not any(_TAKES_UP.search(each) for each in asked)
