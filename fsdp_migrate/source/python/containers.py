"""What holds FSDP1 models in one source: lists, tuples, dicts, and objects with attributes.

The steps to what is held are those of :mod:`fsdp_migrate.source.python.held`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.delegates import stands_for_attribute
from fsdp_migrate.source.python.held import (
    EACH,
    ITEM,
    LONGEST,
    VALUE,
    alike,
    attribute,
    held,
    item,
    items_in,
    of_dict,
    put,
    stood_for,
    taken,
    whole,
)
from fsdp_migrate.source.python.held_calls import Given, is_known, of_function, of_method
from fsdp_migrate.source.python.nodes import (
    dotted,
    named_arguments,
    placed_arguments,
    placed_parameters,
    string_in,
)
from fsdp_migrate.source.python.object_fields import (
    attributes_of,
    bound_fields,
    classes,
    init_of,
    set_after_init,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds

    Kinds = Callable[[cst.BaseExpression], set[str]]


_ADDS = {"add": 0, "append": 0, "appendleft": 0, "insert": 1}


def held_by(kinds: Kinds, node: cst.BaseExpression) -> set[str]:
    """Return what a literal or a comprehension holds."""
    if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
        return _of_elements(kinds, node) if len(node.elements) <= LONGEST else set()
    if isinstance(node, cst.Dict):
        return _of_dict(kinds, node) if len(node.elements) <= LONGEST else set()
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
        return put(EACH, alike(kinds(node.elt), _giver(node.elt)))
    if isinstance(node, cst.DictComp):
        return put(VALUE, alike(kinds(node.value), _giver(node.value)))
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Multiply)):
        return put(EACH, taken(EACH, kinds(node.left) | kinds(node.right)))
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        return of_dict(kinds(node.left) | kinds(node.right))  # `state | {"model": model}`
    return set()


def _giver(node: cst.BaseExpression) -> str | None:
    """Return the method that gives an expression, nothing for a name, and None for anything else."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value
    return "" if isinstance(node, cst.Name) else None


def _of_elements(kinds: Kinds, node: cst.Tuple | cst.List | cst.Set) -> set[str]:
    found: set[str] = set()
    is_placed = not isinstance(node, cst.Set)
    for place, each in enumerate(node.elements):
        if isinstance(each, cst.StarredElement):
            is_placed = False  # what stands behind it is at a place that is not seen
            found |= put(EACH, taken(EACH, kinds(each.value)))
        else:
            found |= put(str(place) if is_placed else EACH, kinds(each.value))
    return found


def _of_dict(kinds: Kinds, node: cst.Dict) -> set[str]:
    found: set[str] = set()
    for each in node.elements:
        if isinstance(each, cst.DictElement):
            name = string_in(each.key)
            found |= put(VALUE if name is None else item(name), kinds(each.value))
        else:
            found |= held(kinds(each.value))
    return found


def step_of(node: cst.Subscript) -> str:
    """Return the step that a subscript takes: to an item by its name, by its place, or to any."""
    inner = node.slice[0].slice if len(node.slice) == 1 else None
    value = inner.value if isinstance(inner, cst.Index) else None
    name = string_in(value)
    if name is not None:
        return item(name)
    return value.value if isinstance(value, cst.Integer) else ITEM


def pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return what is assigned to what: of ``self.a, self.b = a, b`` each by itself."""
    if isinstance(target, (cst.Tuple, cst.List)) and isinstance(value, (cst.Tuple, cst.List)):
        both = (*target.elements, *value.elements)
        is_even = len(target.elements) == len(value.elements)
        if is_even and not any(isinstance(each, cst.StarredElement) for each in both):
            names = (each.value for each in target.elements)
            return list(zip(names, (each.value for each in value.elements), strict=True))
    return [(target, value)]


def rooted(where: cst.BaseExpression, kinds: set[str]) -> tuple[cst.BaseExpression, set[str]]:
    """Return the name in which something is put, and all that it holds then, step by step.

    ``models["a"]["b"] = model`` and ``models.setdefault("a", []).append(model)`` put it into ``models``.
    """
    while True:
        if isinstance(where, cst.Subscript):
            step = step_of(where)
            where, kinds = where.value, put(ITEM if step.isdigit() else step, kinds)
        elif isinstance(where, cst.Call) and isinstance(where.func, cst.Attribute):
            if where.func.attr.value not in {"get", "setdefault"} or not where.args:
                return where, kinds
            name = string_in(where.args[0].value)
            where, kinds = where.func.value, put(VALUE if name is None else item(name), kinds)
        else:
            return where, kinds


def is_slice(node: cst.Subscript) -> bool:
    """Tell whether a subscript gives a part of a list: ``models[1:]``."""
    return any(isinstance(each.slice, cst.Slice) for each in node.slice)


def given_by(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what a call gives that holds models, or is one out of what holds some."""
    func = call.func
    method = func.attr.value if isinstance(func, cst.Attribute) else ""
    names = {each.split(".")[-1] for each in models.index.qualified(func)}
    if isinstance(func, cst.Name) and not names and not models.index.bindings_of(func):
        names = {func.value}
    if not any(map(is_known, (method, *names))):
        return _of_object(models, call)
    given = _given(models, call)
    found = of_method(method, models.kinds(func.value), given) if isinstance(func, cst.Attribute) else set()
    found = found or {kind for name in names for kind in of_function(name, given)}
    return found or _of_object(models, call)


def _given(models: ModelKinds, call: cst.Call) -> Given:
    given = Given()
    for arg in call.args:
        if arg.keyword is not None:
            given.named.append((arg.keyword.value, models.kinds(arg.value)))
        elif arg.star == "**":
            given.named += items_in(models.kinds(arg.value)).items()
        elif not arg.star:
            name = string_in(arg.value)
            given.texts.update({} if name is None else {len(given.placed): name})
            given.placed.append(models.kinds(arg.value))
    return given


def _of_object(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what an object holds that a class of the project makes."""
    found: set[str] = set()
    bound = bound_fields(models.index, call, models.links.fields)
    for name, place, value in bound:
        kinds = models.kinds(value)
        found |= put(attribute(name), kinds)
        if place is not None:
            found |= put(str(place), kinds)
    given = {name for name, _, _ in bound}
    for node in classes(models.index, call.func):
        own = _owed(models, call, node)
        found |= attributes_of(models, node, without={*given, *own} - set_after_init(models.index, node))
        for name, given_here in own.items():
            found |= put(attribute(name), models.kinds(given_here) if given_here is not None else ())
        inner = stands_for_attribute(node)
        found |= stood_for(inner, taken(attribute(inner), found) if inner is not None else ())
    return found


def of_own_dict(models: ModelKinds, node: cst.Attribute) -> set[str]:
    """Return what ``self.__dict__`` holds: of what is gone through, some are no models."""
    owner = models.index.class_of(node) if dotted(node.value) == "self" else None
    kinds: set[str] = set()
    for text in models.attributes.get(owner, ()) if owner is not None else ():
        kinds |= models.facts[owner, text] if owner is not None and text.count(".") == 1 else set()
    return put(VALUE, {*whole(kinds), "other"}) if "fsdp" in kinds else set()


def _owed(models: ModelKinds, call: cst.Call, node: cst.ClassDef) -> dict[str, cst.BaseExpression | None]:
    """Return the attributes that are what the constructor is given alone, with what a call gives it."""
    made = init_of(node)
    if made is None or any(arg.star for arg in call.args):
        return {}
    params = [each.name.value for each in placed_parameters(made)][1:]
    values = dict(zip(params, (arg.value for arg in call.args if arg.keyword is None), strict=False))
    values |= named_arguments(call)
    found: dict[str, cst.BaseExpression | None] = {}
    for text in models.attributes.get(node, ()):
        places = [each for each in models.index.places_set(text) if models.index.class_of(each) is node]
        assign = models.index.parents[places[0]] if len(places) == 1 else None
        value = assign.value if isinstance(assign, cst.Assign) else None
        if (
            isinstance(value, cst.Name)
            and (node, text) not in models.given
            and models.index.function(value) is made
            and value.value in {*params, *(each.name.value for each in made.params.kwonly_params)}
            and len(models.index.bindings_of(value)) == 1
        ):
            found[text.partition(".")[2]] = values.get(value.value)
    return found


def public_owner(target: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
    """Return the object, other than ``self``, that an assignment gives a public attribute, and its name."""
    if not isinstance(target, cst.Attribute) or target.attr.value.startswith("_"):
        return None
    return None if dotted(target.value) in {"self", "cls"} else (target.value, target.attr.value)


def added_to(call: cst.Call) -> Iterator[tuple[cst.BaseExpression, str, cst.BaseExpression]]:
    """Yield what a call puts into a list or a dict: where, behind which step, and what.

    No step: all that is in the one goes into the other.
    """
    if not isinstance(call.func, cst.Attribute):
        return
    name, where = call.func.attr.value, call.func.value
    placed = placed_arguments(call)
    if name in _ADDS and len(placed) == _ADDS[name] + 1:
        yield where, EACH, placed[-1]
    elif name == "setdefault" and len(placed) == 2:
        key = string_in(placed[0])
        yield where, VALUE if key is None else item(key), placed[1]
    elif name in {"extend", "update"}:
        yield from ((where, "", each) for each in placed[:1])
        named = named_arguments(call).items()
        yield from ((where, item(key), value) for key, value in named)
