"""State dict contexts that a project's functions give, and the blocks of any file that enter them so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import last_name
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Project


def context_givers(project: Project) -> Iterator[str]:
    """Yield the names of what returns a state dict context, yields in one, or enters one as a class."""
    paths = [path for path, text in project.texts.items() if "state_dict_type(" in text]
    for module in filter(None, map(project.module, paths)):
        for definition in module.definitions.values():
            node = definition.node
            if isinstance(node, ast.FunctionDef) and _gives_context(node):
                *owner, _ = definition.name.split(".")
                yield owner[-1] if owner and node.name.startswith("__") else node.name


def _gives_context(function: ast.FunctionDef) -> bool:
    blocks = [node for node in ast.walk(function) if isinstance(node, ast.With)]
    entered = {id(item.context_expr) for block in blocks for item in block.items}
    made = [
        n for n in ast.walk(function) if isinstance(n, ast.Call) and last_name(n.func) == "state_dict_type"
    ]
    if any(id(call) not in entered for call in made):
        return True
    return any(
        isinstance(inner, ast.Yield)
        for block in blocks
        if any(call is item.context_expr for call in made for item in block.items)
        for inner in ast.walk(block)
    )


def lines_in_contexts(project: Project) -> dict[Path, set[int]]:
    """Return by file the lines that run in a context which a function of the project gives."""
    names = set(context_givers(project))
    found: dict[Path, set[int]] = {}
    for module in project.parsed(project.holding(names)) if names else ():
        for node in walked(module.tree):
            if not isinstance(node, ast.With):
                continue
            calls = (e for item in node.items for e in ast.walk(item.context_expr) if isinstance(e, ast.Call))
            if any(last_name(call.func) in names for call in calls):
                lines = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
                found.setdefault(module.path, set()).update(lines)
    return found
