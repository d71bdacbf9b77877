"""Methods of a project's own modules that ask for states of ``self``, and are called on sharded models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.asked_methods import called_summoned


if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project


_ASKS = re.compile(r"\bself(?:\.\w+)*\.(?:(?:load_)?state_dict|save_pretrained)\(")


def states_by_file(project: Project, names: Collection[str]) -> dict[Path, frozenset[str]]:
    """Return which of some methods each file has in its modules' classes, and asks there for states.

    Not those that are called where parameters are summoned.
    """
    found: dict[Path, frozenset[str]] = {}
    names = {*names} - called_summoned(project)
    for path in project.holding(names) if names else ():
        module = project.module(path) if _ASKS.search(project.texts[path]) else None
        if module is not None and (own := frozenset(_of(module, names))):
            found[path] = own
    return found


def saves_itself(project: Project) -> bool:
    """Tell whether a module of the project has a ``save_pretrained`` of its own that takes no state."""
    for path in project.holding(["save_pretrained"]):
        module = project.module(path) if "def save_pretrained(" in project.texts[path] else None
        for name, definition in module.definitions.items() if module is not None else ():
            owner, _, method = name.rpartition(".")
            node = definition.node
            if method == "save_pretrained" and isinstance(node, ast.FunctionDef):
                takes = node.args.kwarg is not None or any(
                    each.arg == "state_dict" for each in (*node.args.args, *node.args.kwonlyargs)
                )
                if not takes and module is not None and _is_a_module(module, owner):
                    return True
    return False


def _of(module: Module, names: Collection[str]) -> set[str]:
    found = set()
    for name, definition in module.definitions.items():
        owner, _, method = name.rpartition(".")
        if method in names and _is_a_module(module, owner) and _ASKS.search(definition.written):
            found.add(method)
    return found


def _is_a_module(module: Module, owner: str) -> bool:
    """Tell whether a class of a file is a module, by its bases, or by its forward."""
    definition = module.definitions.get(owner)
    if definition is None or not isinstance(definition.node, ast.ClassDef):
        return False
    bases = [ast.unparse(base).split(".")[-1] for base in definition.node.bases]
    is_one = any(base.endswith(("Module", "PreTrainedModel")) for base in bases)
    return is_one or f"{owner}.forward" in module.definitions
