"""Functions that a switch chooses: called in its branches alone, or handed on by a name that is set there.

``prepare = self._prepare_ddp`` in the ``else`` of a test: what was tested there holds in the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


def places_chosen(index: Index, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Return the places that call a private method, or hand it on; none where it may be run by others.

    What it calls of itself is no such place. A text with its name may be used to look it up, and a function
    outside of a class may be imported.
    """
    name = function.name.value
    if index.class_of(function) is None:
        return []
    if not name.startswith("_") or name.startswith("__") or function.decorators or _is_named(index, name):
        return []
    attributes = [cst.ensure_type(node, cst.Attribute) for node in index.by_kind.get(cst.Attribute, ())]
    names = [cst.ensure_type(node, cst.Name) for node in index.by_kind.get(cst.Name, ())]
    parts = {each.attr for each in attributes}
    found: list[cst.BaseExpression] = [each for each in attributes if each.attr.value == name]
    found += [each for each in names if each.value == name and each not in parts and each in index.scopes]
    others = (node for node in index.by_kind.get(cst.FunctionDef, ()) if node is not function)
    if any(cst.ensure_type(node, cst.FunctionDef).name.value == name for node in others):
        return []
    own = {function.name, *walk_for(function, cst.Name), *walk_for(function, cst.Attribute)}
    return [each for each in found if each not in own]


def _is_named(index: Index, name: str) -> bool:
    texts = (cst.ensure_type(node, cst.SimpleString) for node in index.by_kind.get(cst.SimpleString, ()))
    return any(node.value.strip("'\"") == name for node in texts)
