"""The classes of a project that wrap models as FSDP1's does, and derive from none of FSDP1's."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import DDP, WRAPPERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Module, Project


_DEEPEST = 4
_ASKS = frozenset({"isinstance", "issubclass"})


def wrapper_classes(project: Project, module: Module) -> frozenset[str]:
    """Return those that a file imports, as its imports write them: by their names, or by their bases."""
    named = {written for written in module.imports.values() if WRAPPERS.search(written)}
    named |= {written for text in _asked(module) if (written := project.qualified(text, Place(module, "")))}
    found = {written: project.find(module, written) for written in named}
    return frozenset(
        written
        for written, owner in found.items()
        if owner is not None
        and isinstance(owner.node, ast.ClassDef)
        and not _is_fsdp1s(project, owner)
        and (WRAPPERS.search(written) or _is_ddps(project, owner))
    )


def _asked(module: Module) -> Iterator[str]:
    """Yield the classes that a file asks objects for: ``isinstance(model, (parallel.Own, Net))``."""
    for node in walked(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in _ASKS and len(node.args) == 2:
            classes = node.args[1]
            each = classes.elts if isinstance(classes, ast.Tuple) else [classes]
            yield from filter(None, map(dotted, each))


def _is_ddps(project: Project, owner: Definition, depth: int = 0) -> bool:
    """Tell whether a class derives from DistributedDataParallel, over files too."""
    texts = filter(None, map(dotted, owner.node.bases if isinstance(owner.node, ast.ClassDef) else ()))
    if any(project.qualified(text, Place(owner.module, "")) in DDP for text in texts):
        return True
    return depth < _DEEPEST and any(_is_ddps(project, base, depth + 1) for base in project.bases(owner))


def _is_fsdp1s(project: Project, owner: Definition, depth: int = 0) -> bool:
    if project.is_subclass(owner):
        return True
    return depth < _DEEPEST and any(_is_fsdp1s(project, base, depth + 1) for base in project.bases(owner))
