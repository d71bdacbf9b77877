"""The classes of a project that wrap models as FSDP1's does, and derive from none of FSDP1's."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.wrappers import WRAPPERS


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Definition, Module, Project


_DEEPEST = 4


def wrapper_classes(project: Project, module: Module) -> frozenset[str]:
    """Return those that a file imports, as its imports write them."""
    named = {written for written in module.imports.values() if WRAPPERS.search(written)}
    found = {written: project.find(module, written) for written in named}
    return frozenset(
        written
        for written, owner in found.items()
        if owner is not None and isinstance(owner.node, ast.ClassDef) and not _is_fsdp1s(project, owner)
    )


def _is_fsdp1s(project: Project, owner: Definition, depth: int = 0) -> bool:
    if project.is_subclass(owner):
        return True
    return depth < _DEEPEST and any(_is_fsdp1s(project, base, depth + 1) for base in project.bases(owner))
