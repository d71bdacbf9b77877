"""Names that tests replace in modules of the project that have none: ``@patch("pkg.train.FSDP")``."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.by_name import PATCHES, replaces
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links


_NAMES: Final = ("FSDP", "FullyShardedDataParallel", "ShardedGradScaler")
_NAME: Final = re.compile(rf"^(?:(?P<module>[\w.]+)\.)?(?P<name>{'|'.join(_NAMES)})(?:\.\w+)?$")


def with_patched_names(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell files what they replace in vain."""
    naming = project.holding(_NAMES)
    asking = (path for path in naming if PATCHES.search(project.texts[path]))
    modules = (module for path in asking if (module := project.module(path)) is not None)
    found = {module.path: frozenset(_replaced_in_vain(project, module)) for module in modules}
    told = {
        path: replace(links.get(path, NOTHING), replaced_in_vain=each) for path, each in found.items() if each
    }
    return {**links, **told}


def _replaced_in_vain(project: Project, module: Module) -> Iterator[str]:
    for node in walked(module.tree):
        if isinstance(node, ast.Call) and replaces(dotted(node.func) or ""):
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            owner = dotted(node.args[0]) if node.args else None
            for match in (_NAME.match(each) for each in texts if isinstance(each, str)):
                if match is not None and _is_missing(project, module, match, owner):
                    yield match[0] if match["module"] else f"{owner}.{match[0]}"


def _is_missing(project: Project, module: Module, match: re.Match[str], owner: str | None) -> bool:
    """Tell whether the module of a name is seen whole, and nothing in it is called so."""
    written = match["module"] or (project.qualified(owner, Place(module, "")) if owner is not None else "")
    homes = project.paths(module, written) if written else []
    home = project.module(homes[0]) if len(homes) == 1 else None
    if home is None or home is module or home.stars:
        return False
    return re.search(rf"\b{match['name']}\b", project.texts[home.path]) is None
