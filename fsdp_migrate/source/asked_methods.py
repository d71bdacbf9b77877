"""Methods that a sharded model is asked for in one file, and that its class defines in another."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog


if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from fsdp_migrate.source.project import Project


_LOOKS = re.compile(
    r"\bndim|\.dim\(\)|\blen\(\w+\.(shape|size)|\.data\s*=[^=]|\b(norm|isnan|isinf|isfinite)\(|\ball_reduce\("
)


def asked_for(
    func: ast.expr, known: Collection[str], kinds: Callable[[ast.expr], Collection[str]]
) -> set[str]:
    """Return the name of the method, if a call asks a sharded model for one that not every module has."""
    if not isinstance(func, ast.Attribute) or func.attr in catalog.OF_MODULES or func.attr in known:
        return set()
    return {func.attr} if "fsdp" in kinds(func.value) else set()


def methods_by_file(project: Project, names: Collection[str]) -> dict[Path, frozenset[str]]:
    """Return which of some methods each file defines, of those that look at parameters one by one."""
    found: dict[Path, frozenset[str]] = {}
    for path in project.holding(names):
        text = project.texts[path]
        if "parameters()" in text and _LOOKS.search(text):
            defined = frozenset(name for name in names if f"def {name}(" in text)
            found.update({path: defined} if defined else {})
    return found
