"""What a call gives to the fields of an object: of dataclasses and named tuples of one source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import attribute, item, put
from fsdp_migrate.source.python.nodes import dotted, kept, last_name, walk_for


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fsdp_migrate.source.python.links import Fields
    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index

    Bound = list[tuple[str, int | None, cst.BaseExpression]]


_NAMED_TUPLES = frozenset({"collections.namedtuple", "typing.NamedTuple", "typing_extensions.NamedTuple"})
DECORATORS = frozenset(
    {"attrs", "dataclass", "define", "frozen", "mutable", "pytree_dataclass", "s", "struct"}
)
_DEEPEST = 3


@kept
def classes(index: Index, func: cst.BaseExpression) -> tuple[cst.ClassDef, ...]:
    """Return the classes of this source that a call makes an object of."""
    if type(func) is not cst.Name or func not in index.scopes:
        return ()
    bound = index.scopes[func].lookup(func.value)
    return tuple(e.node for e in bound if e.kind == "class" and isinstance(e.node, cst.ClassDef))


def init_of(node: cst.ClassDef) -> cst.FunctionDef | None:
    """Return the constructor that a class has itself."""
    own = (item for item in node.body.body if isinstance(item, cst.FunctionDef))
    return next((item for item in own if item.name.value == "__init__"), None)


def set_after_init(index: Index, node: cst.ClassDef) -> set[str]:
    """Return the fields that ``__post_init__`` sets anew: ``self.model = FSDP(self.model)``."""
    own = (each for each in node.body.body if isinstance(each, cst.FunctionDef))
    made = next((each for each in own if each.name.value == "__post_init__"), None)
    texts = (dotted(each.target) or "" for each in (walk_for(made, cst.AssignTarget) if made else ()))
    return {text.removeprefix("self.") for text in texts if text.startswith("self.")}


def rest_of(function: cst.FunctionDef, arg: cst.Arg, place: int) -> tuple[str, str] | None:
    """Return ``args``, or ``kwargs``, of a function, and the step there, where that takes an argument."""
    params = function.params
    if arg.keyword is not None:
        kwarg = params.star_kwarg
        return (kwarg.name.value, item(arg.keyword.value)) if kwarg is not None else None
    rest = params.star_arg
    return (rest.name.value, str(place)) if isinstance(rest, cst.Param) and place >= 0 else None


def attributes_of(models: ModelKinds, node: cst.ClassDef, without: Collection[str] = ()) -> set[str]:
    """Return what the objects of a class of this source hold in their attributes."""
    found: set[str] = set()
    for text in models.attributes.get(node, ()):
        *steps, last = text.split(".")[1:]
        if (steps or [last])[0] in without:
            continue
        kinds = put(attribute(last), models.facts[node, text])
        for step in reversed(steps):
            kinds = put(attribute(step), kinds)
        found |= kinds
    return found


def bound_fields(index: Index, call: cst.Call, others: Mapping[str, Fields]) -> Bound:
    """Return the fields that a call gives something: name, place in a named tuple, and what is given.

    Args:
        index: The source.
        call: The call.
        others: The fields of classes of the project's other files, by the names of these.
    """
    known = (others[name] for name in index.qualified(call.func) if name in others) if others else iter(())
    order, is_tuple = next(known, None) or _named_tuple(index, call.func)
    for node in classes(index, call.func):
        if init_of(node) is not None:
            return []
        order, is_tuple = tuple(_fields(index, node)), _is_named_tuple(index, node)
        if not order:
            return []
    found: Bound = []
    place = 0
    for arg in call.args if order else ():
        if arg.star:
            place = len(order)  # what follows by place is not seen
        elif arg.keyword is not None:
            name = arg.keyword.value
            found.append((name, order.index(name) if is_tuple and name in order else None, arg.value))
        elif place < len(order):
            found.append((order[place], place if is_tuple else None, arg.value))
            place += 1
    return found


def _fields(index: Index, node: cst.ClassDef, depth: int = 0) -> list[str]:
    """Return the fields of a dataclass, or of a class that is made as one, in their order."""
    found: list[str] = []
    for base in node.bases:
        for above in classes(index, base.value) if depth < _DEEPEST else ():
            found += _fields(index, above, depth + 1)
    for line in node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            is_field = isinstance(small, cst.AnnAssign) and "ClassVar" not in (
                dotted(small.annotation.annotation) or ""
            )
            if is_field and isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                found.append(small.target.value)
    is_made_so = _is_decorated(node) or bool(node.bases)
    return list(dict.fromkeys(found)) if is_made_so or depth else []


def _is_decorated(node: cst.ClassDef) -> bool:
    for each in node.decorators:
        made = each.decorator.func if isinstance(each.decorator, cst.Call) else each.decorator
        if last_name(made) in DECORATORS:
            return True
    return False


def _is_named_tuple(index: Index, node: cst.ClassDef) -> bool:
    return any(index.qualified(base.value) & _NAMED_TUPLES for base in node.bases)


@kept
def _named_tuple(index: Index, func: cst.BaseExpression) -> Fields:
    """Return the fields of ``State`` after ``State = namedtuple("State", "model optimizer")``."""
    if type(func) is not cst.Name or func not in index.scopes:
        return (), False
    for binding in index.scopes[func].lookup(func.value):
        value = binding.value
        is_made = isinstance(value, cst.Call) and bool(index.qualified(value.func) & _NAMED_TUPLES)
        if is_made and isinstance(value, cst.Call) and len(value.args) > 1:
            return tuple(_names(value.args[1].value)), True
    return (), False


def _names(node: cst.BaseExpression) -> list[str]:
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value).replace(",", " ").split()
    found = []
    for each in node.elements if isinstance(node, (cst.List, cst.Tuple)) else ():
        first = each.value
        if isinstance(first, (cst.Tuple, cst.List)) and first.elements:
            first = first.elements[0].value
        if not isinstance(first, cst.SimpleString):
            return []
        found.append(str(first.evaluated_value))
    return found
