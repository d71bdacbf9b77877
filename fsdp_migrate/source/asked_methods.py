"""Methods that a sharded model is asked for in one file, and that its class defines in another."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from fsdp_migrate.source.project import Project


_DIMENSIONS = re.compile(r"\bndim|\.dim\(\)|\blen\(\w+\.(shape|size)")
_OF_MODULES = frozenset(
    {
        "apply",
        "bfloat16",
        "children",
        "clip_grad_norm_",
        "cpu",
        "cuda",
        "eval",
        "forward",
        "half",
        "load_state_dict",
        "modules",
        "named_modules",
        "named_parameters",
        "no_sync",
        "parameters",
        "requires_grad_",
        "state_dict",
        "to",
        "train",
        "zero_grad",
    }
)
"""What torch's own modules have: a class that defines one again is none of a project's questions."""


def asked_for(
    func: ast.expr, known: Collection[str], kinds: Callable[[ast.expr], Collection[str]]
) -> set[str]:
    """Return the name of the method, if a call asks a sharded model for one that not every module has."""
    if not isinstance(func, ast.Attribute) or func.attr in _OF_MODULES or func.attr in known:
        return set()
    return {func.attr} if "fsdp" in kinds(func.value) else set()


def methods_by_file(project: Project, names: Collection[str]) -> dict[Path, frozenset[str]]:
    """Return which of some methods each file defines, of those that ask parameters for their dimensions."""
    found: dict[Path, frozenset[str]] = {}
    for path in project.holding(names):
        text = project.texts[path]
        if "parameters()" in text and _DIMENSIONS.search(text):
            defined = frozenset(name for name in names if f"def {name}(" in text)
            found.update({path: defined} if defined else {})
    return found
