"""Loops: what their targets take of what they go through, and which one a name is the target of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.containers import is_slice
from fsdp_migrate.source.python.held import taken
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, kept, parameters_of, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


def kinds_of_targets(
    target: cst.BaseExpression, kinds: set[str]
) -> Iterator[tuple[cst.BaseExpression, set[str]]]:
    """Yield the names that a target binds, with what each is given: ``(name, (model, optimizer))``."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for place, element in enumerate(target.elements):
            if not isinstance(element, cst.StarredElement):
                yield from kinds_of_targets(element.value, taken(str(place), kinds))
    else:
        yield target, kinds


def names_items_of(loop: cst.For | cst.CompFor) -> bool:
    """Tell whether what a loop goes through are the names of a dict's items: ``for k in d: d[k]``."""
    if not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Name) or dotted(loop.iter) is None:
        return False
    over, name = text_of(loop.iter), loop.target.value
    asked = (each for each in walk_for(loop.body, cst.Subscript) if text_of(each.value) == over)
    return any(text_of(each.slice[0]) == name for each in asked)


@kept
def loop_of(index: Index, name: cst.Name) -> cst.For | None:
    """Return the innermost loop, of the same function, in whose body a name is used that is its target."""
    below: cst.CSTNode = name
    for above in index.ancestors(name):
        if type(above) in _ENDS:
            return None
        if type(above) is cst.For and below is above.body and binds(above, name.value):
            return above
        below = above
    return None


def listed_as(index: Index, node: cst.BaseExpression) -> str:
    """Return what the list is called that a loop takes a name from: ``nets`` of ``for n in nets``."""
    bindings = index.bindings_of(node) if isinstance(node, cst.Name) and node in index.scopes else []
    around = {id(each) for each in (node, *index.ancestors(node))}
    # What the node is a part of is bound later: `x = prepare(x)`. In each round the loop binds it first.
    first = [each for each in bindings if id(each.value) not in around]
    for binding in first if len(first) == 1 else ():
        for above in index.ancestors(binding.node):
            if isinstance(above, (cst.For, cst.CompFor)):
                is_within = len(first) == len(bindings) or id(above) in around
                return _list_of(above.target, above.iter, binding.node) if is_within else ""
            if not isinstance(above, (cst.Element, cst.Tuple)):
                break
    return ""


def _list_of(target: cst.BaseExpression, loop: cst.BaseExpression, name: cst.CSTNode) -> str:
    """Return the list out of which a part of a loop's target comes, through ``zip`` and the like."""
    if isinstance(loop, cst.Call) and isinstance(target, (cst.Tuple, cst.List)):
        places = [each.value for each in target.elements]
        given = [arg.value for arg in loop.args]
        if dotted(loop.func) == "zip" and len(places) == len(given):
            found = (_list_of(part, inner, name) for part, inner in zip(places, given, strict=True))
            return next(filter(None, found), "")
        if dotted(loop.func) == "enumerate" and given and len(places) > 1:
            return _list_of(places[1], given[0], name)
        if isinstance(loop.func, cst.Attribute) and loop.func.attr.value == "items" and len(places) > 1:
            return _list_of(places[1], loop.func.value, name)
    if target is not name:
        return ""
    if isinstance(loop, cst.Call) and isinstance(loop.func, cst.Attribute):
        return dotted(loop.func.value) or "" if loop.func.attr.value == "values" else ""
    return dotted(loop) or ""


_GIVES_PARTS = frozenset({"children", "modules", "named_children", "named_modules"})
_GIVES_A_PART = frozenset(
    {"get_decoder", "get_encoder", "get_input_embeddings", "get_output_embeddings", "get_submodule"}
)


def item_of(index: Index, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the attribute that a part is an item of: ``model.layers[0]``, ``for layer in model.layers``.

    Of a part that a model gives by a method or by its name, ``model.get_submodule("head")``, ``for part in
    model.children()``, ``getattr(model, name)``, it is the model; of another name of a part it is the part.
    """
    if isinstance(node, cst.Call):
        return _asked_for(node)
    over: cst.BaseExpression | None = None
    if isinstance(node, cst.Subscript) and not is_slice(node):
        over = node.value
    elif isinstance(node, cst.Name):
        over = next((loop.iter for loop in loops_around(index, node) if binds(loop, node.value)), None)
        if over is None:
            return _renamed_part(index, node)
    while isinstance(over, cst.Call) and dotted(over.func) in {"dict", "enumerate", "list", "reversed"}:
        over = over.args[0].value if over.args else None
    # Where a loop goes through a slice, each is an item of the same list.
    if isinstance(node, cst.Name) and isinstance(over, cst.Subscript) and is_slice(over):
        over = over.value
    if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute):
        return over.func.value if over.func.attr.value in _GIVES_PARTS else None
    return over if isinstance(over, cst.Attribute) else None


def _asked_for(call: cst.Call) -> cst.BaseExpression | None:
    """Return what a call asks for a part: ``model.get_submodule("head")``, ``getattr(model, "head")``."""
    if isinstance(call.func, cst.Attribute):
        return call.func.value if call.func.attr.value in _GIVES_A_PART else None
    return call.args[0].value if dotted(call.func) == "getattr" and len(call.args) > 1 else None


def _renamed_part(index: Index, name: cst.Name) -> cst.BaseExpression | None:
    """Return the part that a name stands for: ``encoder = model.encoder``.

    Not one that is made of it in turn, further down: ``child = parent.children[0]``, ``parent = child.next``.
    """
    value = (last_value(index, name) or _joined_part(index, name)) if name in index.scopes else None
    is_here = value is not None and index.function(value) is index.function(name)
    if value is not None and is_here and index.order.get(value, 0) > index.order.get(name, 0):
        return None
    if isinstance(value, (cst.Call, cst.Subscript)):
        return value if item_of(index, value) is not None else None
    return value if isinstance(value, cst.Attribute) else None


def _joined_part(index: Index, name: cst.Name) -> cst.Attribute | None:
    """Return the part that a name stands for, or another of the same object, where branches come together.

    ``head = None``, and ``head = model.head`` below a condition: where it is asked for anything it is one.
    """
    bindings = index.bindings_of(name)
    function, place = index.function(name), index.order.get(name, 0)
    if any(each.index is not None or index.function(each.node) is not function for each in bindings):
        return None
    before = [each.value for each in bindings if index.order[each.node] < place]
    parts = [each for each in before if each is None or text_of(each) != "None"]
    owners = {text_of(each.value) if isinstance(each, cst.Attribute) else "" for each in parts}
    is_one = len(owners) == 1 and owners.isdisjoint({"", name.value})
    first = parts[0] if is_one else None
    return first if isinstance(first, cst.Attribute) else None


# Other types are passed over by these: to ask what is no instance of an abstract class is slow.
_COMPREHENSIONS = frozenset({cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp})
_AROUND = _COMPREHENSIONS | {cst.For, cst.FunctionDef, cst.Lambda}
_ENDS = _COMPREHENSIONS | {cst.FunctionDef, cst.ClassDef, cst.Lambda}


def loops_around(index: Index, node: cst.CSTNode) -> Iterator[cst.For | cst.CompFor]:
    """Yield the loops, and those of comprehensions, that a place of a function stands in.

    What a loop goes through stands in none of its rounds: ``for name, module in module.named_modules():``.
    """
    around: set[cst.CSTNode] = {node}
    for above in index.ancestors(node):
        if type(above) not in _AROUND:
            around.add(above)
            continue
        if isinstance(above, cst.For) and above.iter not in around:
            yield above
        elif isinstance(above, cst.BaseComp):
            each: cst.CompFor | None = above.for_in
            while each is not None and each.iter not in around:
                yield each
                each = each.inner_for_in
        elif isinstance(above, cst.FunctionDef) or (isinstance(above, cst.Lambda) and _takes(above, node)):
            return
        around.add(above)


def _takes(function: cst.Lambda, node: cst.CSTNode) -> bool:
    """Tell whether a name is a parameter of a lambda, and no longer what a loop around it binds."""
    names = {each.name.value for each in parameters_of(function)}
    return isinstance(node, cst.Name) and node.value in names


def binds(loop: cst.For | cst.CompFor, name: str) -> bool:
    """Tell whether a name is a loop's target, or a part of it."""
    return any(each.value == name for each in walk_for(loop.target, cst.Name))


def of_one_object(index: Index, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what stands around a place, up to a loop that gives its name another object in each round."""
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value  # `block.ffn` is another one for each `block`
    for above in index.ancestors(node):
        if isinstance(above, cst.For) and isinstance(root, cst.Name) and binds(above, root.value):
            return
        yield above
