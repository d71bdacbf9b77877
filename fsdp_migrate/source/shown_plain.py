"""Models that a place itself shows to be plain: made right there, by what gives no sharded one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Place, Project
    from fsdp_migrate.source.project_arguments import Facts


_DEEPEST: Final = 4


def is_shown_plain(known: Facts, node: ast.expr, place: Place, depth: int = 0) -> bool:
    """Tell whether an expression is a model that was made at a place, and that nothing there shards.

    What a function is given, or an object holds, is not shown: others may say what it is.
    """
    if depth > _DEEPEST or has_model(known.kinds(node, place)):
        return False
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in SAME_MODEL:
            return is_shown_plain(known, func.value, place, depth + 1)
        return any(known.called(func, place)) or _is_a_packages(known.project, func, place)
    if not isinstance(node, ast.Name):
        return False
    here = f"{place.module.path}:{place.scope}", node.id
    known.ask(here)
    values = known.renamed.at(node.id, place)
    return (
        bool(values)
        and not has_model(known.facts.get(here, ()))
        and all(
            each.part is None and is_shown_plain(known, each.node, each.place, depth + 1) for each in values
        )
    )


def _is_a_packages(project: Project, func: ast.expr, place: Place) -> bool:
    """Tell whether a package that is none of the project's gives it: ``nn.Linear``."""
    written = project.qualified(dotted(func) or "", place)
    return written[:1] not in {"", "."} and not project.paths(place.module, written)
