"""Projects that shard by FSDP2 themselves, and those that do so by FSDP1 only where torch has no FSDP2."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.never_run import imports_fsdp2
from fsdp_migrate.source.project import Place, dotted, is_a_test
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import FSDP2


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Module, Project


_FSDP2: Final = frozenset(
    name for name in FSDP2 if name.startswith("torch.") and name.endswith(".fully_shard")
)


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


def has_fsdp2(project: Project) -> bool:
    """Tell whether a file of the project shards by FSDP2 itself: it uses torch's function."""
    named = (path for path, text in project.texts.items() if "fully_shard" in text and not is_a_test(path))
    return any(_shards_by_fsdp2(project, module) for module in filter(None, map(project.module, named)))


def _shards_by_fsdp2(project: Project, module: Module) -> bool:
    never = {id(each) for scope in scopes_of(module) for part in scope.never for each in ast.walk(part)}
    used = (each for each in walked(module.tree) if isinstance(each, (ast.Attribute, ast.Name)))
    return any(
        project.qualified(dotted(each) or "", Place(module, "")) in _FSDP2 and id(each) not in never
        for each in used
    )
