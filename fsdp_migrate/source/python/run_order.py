"""Which of two places runs first, where one stands in another function that is called there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_DEEPEST = 4
# Classes whose constructors call no method of those that derive from them.
_KNOWN_BASE = re.compile(r"^((torch\.)?nn\.)?Module$|^object$|^(abc\.)?ABC$")
_LOOPS = (cst.For, cst.While)
# What asks whether a model is sharded already: the function may run again without wrapping it again.
_ASKS_WHETHER = re.compile(r"wrapped|shard|prepared|isinstance|hasattr|already|done|initialized|isNone$")


def places_run(index: Index, node: cst.CSTNode, scope: cst.CSTNode) -> list[cst.CSTNode]:
    """Return where a function runs a place: itself, or the calls of the function in it that has the place.

    Args:
        index: The source.
        node: The place.
        scope: The function.
    """
    own = index.function(node)
    if own is None or own is scope or not isinstance(scope, cst.FunctionDef):
        return [node]
    found = list(_calls_by_name(index, own, scope, 0))
    return [each for each in found if each is not None] if found and None not in found else [node]


def _calls_by_name(
    index: Index, own: cst.FunctionDef, scope: cst.FunctionDef, depth: int
) -> Iterator[cst.CSTNode | None]:
    """Yield the calls of a function in another; None where it may be run in another way, or later."""
    if own.decorators or any(walk_for(own.body, cst.Yield)) or depth == _DEEPEST:
        yield None
        return
    for node in index.by_kind.get(cst.Name, ()):
        name = cst.ensure_type(node, cst.Name)
        is_its = name.value == own.name.value and name is not own.name and name in index.scopes
        if not is_its or all(each.node is not own for each in index.scopes[name].lookup(name.value)):
            continue
        call, around = index.parents[name], index.function(name)
        if not isinstance(call, cst.Call) or call.func is not name or _waits(index, call):
            yield None
        elif around is scope:
            yield call
        elif around is not None and around is not own:
            yield from _calls_by_name(index, around, scope, depth + 1)


def _waits(index: Index, call: cst.Call) -> bool:
    """Tell whether a call is run later than where it stands: in a lambda, or a generator that is kept."""
    for above in index.ancestors(call):
        if isinstance(above, cst.Lambda):
            return True
        if isinstance(above, cst.GeneratorExp) and not isinstance(index.parents[above], cst.Arg):
            return True
        if isinstance(above, cst.BaseStatement):
            return False
    return False


def runs_at(index: Index, statement: cst.CSTNode, function: cst.FunctionDef | None) -> cst.CSTNode | None:
    """Return where a function runs a statement: the statement, or its call of the method that has it.

    ``self.shard()`` in ``setup`` is where ``self.net = FSDP(self.net)`` of ``shard`` is run, if nothing else
    calls that method.
    """
    own = index.function(statement)
    if own is function or own is None or function is None:
        return statement if own is function else None
    calls = index.calls_of_method(own.name.value)
    is_one = len(calls) == 1 and index.function(calls[0]) is function
    is_of_self = is_one and (dotted(calls[0].func) or "") == f"self.{own.name.value}"
    return calls[0] if is_of_self and index.class_of(own) is index.class_of(function) else None


def runs_in_other_branches(index: Index, statement: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Tell whether a constructor runs a statement of another method in branches alone that a place is not in.

    It runs once: in ``if a: self.shard("q")`` and ``else: self.q.weight = w`` the second has a plain layer.
    """
    own, function = index.function(statement), index.function(node)
    if own is None or function is None or own is function or function.name.value != "__init__":
        return False
    owner, name = index.class_of(function), f"self.{own.name.value}"
    named = [
        each
        for each in index.by_kind.get(cst.Attribute, ())
        if cst.ensure_type(each, cst.Attribute).attr.value == own.name.value
    ]
    if owner is None or index.class_of(own) is not owner or not named:
        return False
    if not all(_KNOWN_BASE.search(text_of(each.value)) for each in owner.bases):
        return False
    return all(
        dotted(each) == name and index.function(each) is function and index.excludes(each, node)
        for each in named
    )


def runs_later(index: Index, statement: cst.CSTNode, function: cst.FunctionDef | None) -> bool:
    """Tell whether an object runs the method that has a statement, by others even, below its call of one.

    Nothing else may call that one, so it is a private one: with ``self._load()`` above ``self.shard()`` in
    the constructor, ``_load`` has the plain model. So it has in any method, which would wrap twice if it ran
    again.
    """
    own = index.function(statement)
    owner = index.class_of(function) if function is not None else None
    if own is None or owner is None or index.class_of(own) is not owner:
        return False
    below = function
    for _ in range(_DEEPEST):
        call = _only_call(index, below) if below is not None else None
        above = index.function(call) if call is not None else None
        if call is None or above is None or index.class_of(above) is not owner or above is function:
            return False
        place = index.order[call]
        is_made = above.name.value == "__init__"
        reached: list[cst.CSTNode] = [*_calls_that_reach(index, own, above)]
        if above is own:
            reached = [] if is_made else [statement]
        if reached or is_made:
            is_sure = is_made or not any(_may_be_left_out(index, each) for each in (statement, *reached))
            return bool(reached) and is_sure and all(index.order[each] > place for each in reached)
        below = above
    return False


def runs_after(index: Index, statement: cst.CSTNode, function: cst.FunctionDef | None) -> bool:
    """Tell whether a statement of another method of the same object runs below what a method does."""
    return runs_later(index, statement, function) or _is_constructed_before(index, statement, function)


def _is_constructed_before(index: Index, statement: cst.CSTNode, function: cst.FunctionDef | None) -> bool:
    """Tell whether a constructor is done before a statement of another method of the object can run.

    It names that method nowhere, neither by other methods, and nothing else that is given ``self`` runs it.
    """
    own, owner = index.function(statement), index.class_of(function) if function is not None else None
    if function is None or function.name.value != "__init__" or owner is None:
        return False
    if own is None or own is function or index.class_of(own) is not owner or own.decorators:
        return False
    methods = {each.name.value: each for each in owner.body.body if isinstance(each, cst.FunctionDef)}
    is_known = all(_KNOWN_BASE.search(text_of(each.value)) for each in owner.bases)
    if methods.get(own.name.value) is not own or not is_known:
        return False
    reached, todo = {"__init__"}, ["__init__"]
    while todo:
        method = methods[todo.pop()]
        for call in walk_for(method.body, cst.Call):
            name = (dotted(call.func) or "").removeprefix("self.")
            if name not in methods and any(text_of(arg.value) == "self" for arg in call.args):
                return False
        named = {each.attr.value for each in walk_for(method.body, cst.Attribute)} & set(methods)
        todo += named - reached
        reached |= named
    return own.name.value not in reached


def _only_call(index: Index, function: cst.FunctionDef) -> cst.Call | None:
    """Return the call of a method that runs it, once; None where anything else may run it."""
    name = function.name.value
    calls = index.calls_of_method(name) if name.startswith("_") or name == "setup" else []
    if len(calls) != 1 or any(isinstance(each, _LOOPS) for each in index.ancestors(calls[0])):
        return None
    named = (cst.ensure_type(each, cst.Attribute) for each in index.by_kind.get(cst.Attribute, ()))
    # `hook=self._load`: whoever has it may call it.
    is_handed_on = any(each.attr.value == name and each is not calls[0].func for each in named)
    return None if is_handed_on or _waits(index, calls[0]) else calls[0]


def _may_be_left_out(index: Index, statement: cst.CSTNode) -> bool:
    """Tell whether a function that runs again may not wrap again: it asks whether it did."""
    choices = (each for each in index.ancestors(statement) if isinstance(each, (cst.If, cst.IfExp, *_LOOPS)))
    return any(
        isinstance(each, _LOOPS) or _ASKS_WHETHER.search(text_of(each.test)) is not None for each in choices
    )


def _calls_that_reach(
    index: Index, own: cst.FunctionDef, above: cst.FunctionDef, depth: int = 0
) -> list[cst.Call]:
    """Return the calls in a constructor that run a method of the same object, by others even."""
    found: list[cst.Call] = []
    for call in index.calls_of_method(own.name.value):
        caller = index.function(call)
        if text_of(call.func) not in {f"self.{own.name.value}", f"super().{own.name.value}"}:
            continue  # `self.model.train()`
        if caller is above:
            found.append(call)
        elif caller is not None and caller is not own and depth < _DEEPEST:
            found += _calls_that_reach(index, caller, above, depth + 1)
    return found
