"""Lists and dicts that a loop fills with a model's parameters: ``self.lora.append(p)``, ``d[n] = p``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, walk_for
from fsdp_migrate.source.python.parameter_lists import gone_through, modules_of, shares
from fsdp_migrate.source.python.parameters import model_of, parameters_of, put_as_it_is


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_WEIGHTS: Final = frozenset({"bias", "weight"})
_FILL: Final = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_EMPTY: Final = frozenset({"OrderedDict", "defaultdict", "deque", "dict", "list", "set"})


def is_made_empty(value: cst.BaseExpression) -> bool:
    """Tell whether an expression makes a list or a dict with nothing in it: ``defaultdict(list)``."""
    if isinstance(value, (cst.Dict, cst.List)):
        return not value.elements
    is_one = isinstance(value, cst.Call) and last_name(value.func) in _EMPTY
    return is_one and all(isinstance(arg.value, cst.Name) for arg in cst.ensure_type(value, cst.Call).args)


def filled_from(index: Index, assign: cst.Assign | cst.AnnAssign, name: str) -> Iterator[cst.BaseExpression]:
    """Yield the models whose parameters loops of the same function put into what a line made empty."""
    function = index.function(assign)
    yield from _added_whole(index, assign, name)
    for node in index.by_kind.get(cst.For, ()):
        loop = cst.ensure_type(node, cst.For)
        if index.function(loop) is not function or index.order[loop] < index.order[assign]:
            continue
        if any(not parameters_of(loop).isdisjoint(put) for put in _put_into(loop, name)):
            model = model_of(index, loop.iter)
            yield from () if model is None else (model,)
        over = modules_of(loop.iter)
        if over is not loop.iter and any(_puts_weights(loop, name)):
            yield over


def _added_whole(index: Index, assign: cst.Assign | cst.AnnAssign, name: str) -> Iterator[cst.BaseExpression]:
    """Yield the models of ``params.extend(net.parameters())``, and of ``params += [...]``."""
    given: list[cst.BaseExpression] = []
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        if dotted(call.func) in {f"{name}.extend", f"{name}.update"}:
            given += [arg.value for arg in call.args]
    for node in index.by_kind.get(cst.AugAssign, ()):
        line = cst.ensure_type(node, cst.AugAssign)
        given += [line.value] if dotted(line.target) == name else []
    for value in given:
        if index.function(value) is index.function(assign) and index.order[value] > index.order[assign]:
            for share in shares(index, value):
                loops = [each for each in index.ancestors(value) if isinstance(each, cst.For)]
                yield from gone_through(share.model, loops)


def _puts_weights(loop: cst.For, name: str) -> Iterator[bool]:
    """Yield where a loop over modules puts their parameters into a list: ``params.append(m.weight)``."""
    modules = {each.value for each in walk_for(loop.target, cst.Name)}
    for call in walk_for(loop.body, cst.Call):
        func = call.func if isinstance(call.func, cst.Attribute) else None
        if func is not None and func.attr.value in _FILL and dotted(_root(func.value)) == name:
            parts = (part for arg in call.args for part in walk_for(arg.value, cst.Attribute))
            yield any(part.attr.value in _WEIGHTS and dotted(part.value) in modules for part in parts)


def _put_into(loop: cst.For, name: str) -> Iterator[set[str]]:
    """Yield the names of what a loop puts into a list or a dict, or into one that it holds."""
    for call in walk_for(loop.body, cst.Call):
        func = call.func if isinstance(call.func, cst.Attribute) else None
        if func is not None and func.attr.value in _FILL and dotted(_root(func.value)) == name:
            yield {each for arg in call.args for each in put_as_it_is(arg.value)}
    for assign in walk_for(loop.body, cst.Assign):
        for each in assign.targets:
            if isinstance(each.target, cst.Subscript) and dotted(_root(each.target)) == name:
                yield set(put_as_it_is(assign.value))


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the list or dict of ``groups[k]``, and of ``groups.setdefault(k, [])``."""
    while isinstance(node, (cst.Subscript, cst.Call)):
        func = node.func if isinstance(node, cst.Call) else None
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(func, cst.Attribute):
            node = func.value
        else:
            break
    return node
