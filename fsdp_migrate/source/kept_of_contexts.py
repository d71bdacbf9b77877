"""What is made, in a block, of parameters that are put away behind it: optimizers, and lists read below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.called_methods import is_the_model
from fsdp_migrate.source.kept_lists import is_about
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import bound_in, dotted, last_name, text_of, walk, walk_for
from fsdp_migrate.source.python.optimizers import is_named_so, is_optimizer
from fsdp_migrate.source.python.parameter_lists import is_only_counted, named_as_parameters, shares
from fsdp_migrate.source.python.parameters import is_torchs_optimizer, makes_optimizers, parameters_of
from fsdp_migrate.source.python.returned_parameters import returned_shares


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_FILLS = frozenset({"add", "append", "extend", "setdefault", "update"})
_WEIGHTS = frozenset({"bias", "weight"})
_PUT = frozenset({"data", "grad"})


def kept_of(source: Source, block: cst.CSTNode, model: str) -> Iterator[cst.CSTNode]:
    """Yield the optimizers that a block makes of a model's parameters, and where it leaves these to others.

    Args:
        source: The source.
        block: What runs where parameters are other objects than they are outside of it.
        model: What the model is called there.
    """
    inside = set(walk(block))
    for call in walk_for(block, cst.Call):
        if _makes_an_optimizer(source, call, model, inside):
            yield call
    for line in walk_for(block, cst.Return):
        if line.value is not None and _holds(source, line.value, model, inside):
            yield line
    said: set[cst.CSTNode | str] = set()
    for name in _read_below(source, block, inside):
        statement = source.index.statement(name)
        if said.isdisjoint({name.value, statement}) and _holds(source, name, model, inside):
            yield name
            said |= {name.value, statement}


def put_without_writing(source: Source, block: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield where a block puts tensors in the place of parameters' own, and writes none: ``p.data = x``."""
    for assign in walk_for(block, cst.AssignTarget):
        target = assign.target
        above = source.index.parents[assign]
        is_emptied = isinstance(above, cst.Assign) and text_of(above.value) == "None"
        if isinstance(target, cst.Attribute) and target.attr.value in _PUT and not is_emptied:
            yield from [target] if _is_parameter(target.value, block) else ()
    for call in walk_for(block, cst.Call):
        if "torch.nn.utils.vector_to_parameters" in source.index.qualified(call.func):
            yield call


def _is_parameter(node: cst.BaseExpression, block: cst.CSTNode) -> bool:
    """Tell whether it is what a loop of a block takes of a model's parameters, or a layer's weight."""
    if isinstance(node, cst.Attribute):
        return node.attr.value in _WEIGHTS
    return isinstance(node, cst.Name) and any(
        node.value in parameters_of(loop) and "parameters()" in text_of(loop.iter)
        for loop in walk_for(block, cst.For)
    )


def _makes_an_optimizer(source: Source, call: cst.Call, model: str, inside: set[cst.CSTNode]) -> bool:
    """Tell whether a call makes an optimizer of what a block shows: by its class, or by a function's name."""
    name = last_name(call.func)
    is_class = any(map(is_torchs_optimizer, source.index.qualified(call.func)))
    is_so_named = is_optimizer(name.lower()) or is_named_so(source.models, call)
    if is_class or (name[:1].isupper() and is_so_named):
        return any(_holds(source, arg.value, model, inside) for arg in call.args)
    if not makes_optimizers(name):
        return False
    asked = [call.func.value] if isinstance(call.func, cst.Attribute) else []
    return any(is_the_model(source, each, model) for each in (*asked, *(arg.value for arg in call.args)))


def _holds(source: Source, node: cst.BaseExpression, model: str, inside: set[cst.CSTNode]) -> bool:
    """Tell whether an expression holds parameters of a model that a block asks it for."""
    found = [share.model for share in shares(source.index, node)]
    value = last_value(source.index, node) if isinstance(node, cst.Name) else node
    if not found and isinstance(value, cst.Call) and value in inside:
        named = named_as_parameters(value, node.value if isinstance(node, cst.Name) else "")
        given = [*returned_shares(source, value), *([] if named is None else [named])]
        return any(is_about(source, each, model) for each in given)
    if isinstance(value, cst.Attribute) and value in inside and value.attr.value in _WEIGHTS:
        return is_about(source, value.value, model)
    return any(each in inside and is_about(source, each, model) for each in found)


def _read_below(source: Source, block: cst.CSTNode, inside: set[cst.CSTNode]) -> Iterator[cst.Name]:
    """Yield where the function of a block reads, below it, what the block binds or fills."""
    order, function = source.index.order, source.index.function(block)
    names = _set_in(block)
    below = max(order[each] for each in inside if each in order)
    for name in source.loads:
        if name.value not in names or order[name] <= below or name not in source.index.scopes:
            continue
        if source.index.function(name) is function and not is_only_counted(source.index, name):
            yield name


def _set_in(block: cst.CSTNode) -> set[str]:
    """Return the names that a block binds, or whose lists it fills."""
    targets = (each.target for each in walk_for(block, cst.AssignTarget))
    found = {dotted(part) or "" for target in targets for part in bound_in(target)}
    for call in walk_for(block, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _FILLS:
            found |= {each.value for each in walk_for(call.func.value, cst.Name)}
    return found
