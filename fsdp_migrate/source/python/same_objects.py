"""What else an object is called in a function: ``model`` and ``self.model``, by one assignment of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.wrapped_in_place import given_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index

_INIT = "__init__"


def other_names(index: Index, node: cst.CSTNode) -> Iterator[str]:
    """Yield the other names, also by what the constructor of a base class of this source keeps.

    Below ``self.model = model`` in the same function, and below ``super().__init__(model)``.
    """
    function, text = index.function(node), _name(node)
    if function is None or not text or function not in index.order:
        return
    place = index.order.get(node, 0)
    pairs = [*_assigned(index, function, place), *_kept_above(index, function, place)]
    bound = [target for target, _ in pairs]
    for target, value in pairs:
        if text in {target, value} and bound.count(target) == 1 and value not in bound:
            yield value if text == target else target


def _name(node: cst.CSTNode) -> str:
    """Return a name, or an attribute of ``self``."""
    is_name = isinstance(node, (cst.Attribute, cst.Name))
    text = (dotted(node) or "") if is_name else ""
    return text if "." not in text or (text.startswith("self.") and text.count(".") == 1) else ""


def _assigned(index: Index, function: cst.FunctionDef, place: int) -> Iterator[tuple[str, str]]:
    """Yield what names of a function are bound to above a place: nothing for what is no name."""
    for assign in walk_for(function.body, cst.Assign):
        if index.function(assign) is function and index.order[assign] < place:
            for each in assign.targets:
                if target := _name(each.target):
                    yield target, _name(assign.value)


def _kept_above(index: Index, function: cst.FunctionDef, place: int) -> Iterator[tuple[str, str]]:
    """Yield what the constructor of a base class keeps of what this one gives it."""
    owner = index.class_of(function)
    if owner is None or function.name.value != _INIT:
        return
    for call in walk_for(function.body, cst.Call):
        if text_of(call.func) != f"super().{_INIT}" or index.order[call] > place:
            continue
        for made in _constructors(index, owner):
            every = (each for assign in walk_for(made.body, cst.Assign) for each in assign.targets)
            bound = [_name(each.target) for each in every]
            for target, value in _assigned(index, made, index.order[made] + len(index.order)):
                given = given_for(call, made, value) if value and bound.count(target) == 1 else None
                if target.startswith("self.") and value not in bound and given is not None:
                    yield target, _name(given)


def _constructors(index: Index, owner: cst.ClassDef) -> Iterator[cst.FunctionDef]:
    """Yield the constructors of the classes of this source that a class derives from directly."""
    bases = {text_of(each.value) for each in owner.bases}
    for node in index.by_kind.get(cst.ClassDef, ()):
        above = cst.ensure_type(node, cst.ClassDef)
        methods = (each for each in above.body.body if isinstance(each, cst.FunctionDef))
        if above.name.value in bases:
            yield from (each for each in methods if each.name.value == _INIT)
