"""Modules that are made here, of a class, and are neither sharded nor part of what is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.models import Models


_MAY_WRAP = re.compile(r"accelerat|ddp|distribut|fsdp|parallel|prepare|setup|shard|wrap", re.IGNORECASE)
_DDP = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)
_MODEL = re.compile(r"model|module|net", re.IGNORECASE)


def has_plain_parameters(models: Models, given: cst.BaseExpression) -> bool:
    """Tell whether it is ``side.parameters()`` of a module that is plain in any case."""
    while isinstance(given, cst.Call) and dotted(given.func) in SAME_PARAMETERS and given.args:
        given = given.args[-1].value  # `filter(lambda p: ..., side.parameters())`
    func = given.func if isinstance(given, cst.Call) else None
    is_list = isinstance(func, cst.Attribute) and func.attr.value in PARAMETERS
    return is_list and isinstance(func, cst.Attribute) and is_plain_module(models, func.value)


def is_plain_module(models: Models, node: cst.BaseExpression) -> bool:
    """Tell whether a name is a module of a class, which nothing shards and nothing that is sharded has.

    ``side = nn.Linear(4, 4).to(device)`` is one, ``model = FSDP(Pair(net, side))`` makes it none, and
    ``side = DDP(side)`` leaves it one. A part of one is so as well.
    """
    index = models.index
    while isinstance(node, cst.Attribute):
        node = node.value
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    bindings = index.bindings_of(node)
    function = index.function(node)
    if not bindings or any(index.function(each.node) is not function for each in bindings):
        return False
    if any(
        each.index is not None
        or not (_is_made_plain(models, each.value) or _is_ddps(models, each.value, node))
        for each in bindings
    ):
        return False
    return all(_is_apart(models, use) for use in _uses(models, node))


def _is_ddps(models: Models, value: cst.BaseExpression | None, node: cst.Name) -> bool:
    """Tell whether a module's own name is given torch's DDP around it: ``side = DDP(side.to(device))``."""
    if not isinstance(value, cst.Call) or not models.index.qualified(value.func) & _DDP or not value.args:
        return False
    given = value.args[0].value
    while isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute):
        given = given.func.value
    return text_of(given) == node.value


def _is_made_plain(models: Models, value: cst.BaseExpression | None) -> bool:
    """Tell whether a value is a call of a class, which is given no other model."""
    if value is None or models.kinds(value):
        return False
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value not in SAME_MODEL:
            break
        value = value.func.value
    name = last_name(value.func) if isinstance(value, cst.Call) else ""
    if not isinstance(value, cst.Call) or not name[:1].isupper() or _MAY_WRAP.search(text_of(value)):
        return False
    given = (each for arg in value.args for each in walk_for(arg.value, cst.Name))
    return not any(_MODEL.search(each.value) or has_model(models.kinds(each)) for each in given)


def _uses(models: Models, node: cst.Name) -> Iterator[cst.Name]:
    """Yield where the same variable is read."""
    scope = models.index.scopes[node].find(node.value)
    for each in models.index.by_kind.get(cst.Name, ()):
        name = cst.ensure_type(each, cst.Name)
        is_named = name.value == node.value and name in models.index.scopes
        if is_named and models.index.scopes[name].find(name.value) is scope:
            yield name


def _is_apart(models: Models, use: cst.Name) -> bool:
    """Tell whether a use of a module cannot put it into a model that is sharded."""
    index = models.index
    above: cst.CSTNode = index.parents[use]
    below: cst.CSTNode = use
    if isinstance(above, cst.AssignTarget):
        return True
    while isinstance(above, cst.Attribute) and above.value is below:
        above, below = index.parents[above], above
    if isinstance(above, cst.Call) and above.func is below and below is not use:
        return True
    call = index.parents[above] if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call) and models.index.qualified(call.func) & _DDP:
        return True
    if isinstance(above, cst.Assign) and _is_of_an_import(models, above):
        return True
    made = [target for targets in models.made.values() for target in targets]
    lines = [index.statement(target) for target in made]
    around = set(index.ancestors(use))
    if not lines or any(
        isinstance(each, cst.Call) and _MAY_WRAP.search(text_of(each.func)) for each in around
    ):
        return False
    return all(index.order[line] < index.order[use] and line not in around for line in lines)


def _is_of_an_import(models: Models, assign: cst.Assign) -> bool:
    """Tell whether a variable of another file is set: ``settings.SIDE = side``."""
    targets = [each.target for each in assign.targets]
    return all(isinstance(each, cst.Attribute) and bool(models.index.qualified(each)) for each in targets)
