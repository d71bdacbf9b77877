"""Projects that shard by FSDP2 themselves, and by FSDP1 only where torch has no FSDP2: with none any more."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.never_run import imports_fsdp2
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_scopes import scopes_of


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Module, Project


def has_fallback(project: Project) -> bool:
    """Tell whether FSDP1's class is called in a file where an import of FSDP2's fails, and so never is."""
    named = (p for p, text in project.texts.items() if "fully_shard" in text and "except" in text)
    modules = (project.module(path) for path in named if catalog.FSDP in project.texts[path])
    return any(module is not None and _falls_back(project, module) for module in modules)


def _falls_back(project: Project, module: Module) -> bool:
    never = [each for scope in scopes_of(module) for each in scope.never]
    calls = (node for each in never for node in ast.walk(each) if isinstance(node, ast.Call))
    known = (project.qualified(dotted(call.func) or "", Place(module, "")) for call in calls)
    return any(catalog.fsdp1_name(each) == catalog.FSDP for each in known) and imports_fsdp2(module.tree)
