"""The fields of a project's dataclasses and named tuples, over its files."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.object_fields import DECORATORS
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Project
    from fsdp_migrate.source.python.links import Fields


_DEEPEST = 3


def fields_of(project: Project, owner: Definition, depth: int = 0) -> Fields:
    """Return the fields of a class that has no constructor of its own, in their order; none for others."""
    assert isinstance(owner.node, ast.ClassDef)
    if not depth and project.method(owner, "__init__") is not None:
        return (), False
    names: list[str] = []
    for base in project.bases(owner) if depth < _DEEPEST else ():
        names += fields_of(project, base, depth + 1)[0]
    for line in owner.node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            names += [] if "ClassVar" in ast.dump(line.annotation) else [line.target.id]
    above = [last_name(base) for base in owner.node.bases]
    is_made_so = bool(above or depth) or any(map(_is_decorator, owner.node.decorator_list))
    return tuple(dict.fromkeys(names)) if is_made_so else (), "NamedTuple" in above


def _is_decorator(node: ast.expr) -> bool:
    made = node.func if isinstance(node, ast.Call) else node
    return last_name(made) in DECORATORS


def stands_for_attribute(owner: Definition) -> str | None:
    """Return the attribute that ``__getattr__`` asks for the rest, of a class that is no module itself."""
    node = owner.module.definitions.get(f"{owner.name}.__getattr__")
    bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else []
    if node is None or any(last_name(base) not in {"ABC", "object"} for base in bases):
        return None
    for each in ast.walk(node.node):
        call = each.value if isinstance(each, ast.Return) else None
        if isinstance(call, ast.Call) and dotted(call.func) == "getattr" and len(call.args) > 1:
            start, _, name = (dotted(call.args[0]) or "").partition(".")
            if start == "self" and name.isidentifier():
                return name
    return None


def makes_attribute(owner: Definition, text: str) -> bool:
    """Tell whether a class makes what is in an attribute itself, by a call: then that says what it is."""
    assigns = (node for node in walked(owner.node) if isinstance(node, ast.Assign))
    return any(
        isinstance(each.value, ast.Call) and any(dotted(target) == text for target in each.targets)
        for each in assigns
    )
