"""Classes of a project that are called Trainer and derive from no framework's, as all their bases show."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.heirs import imported
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.heirs import HUGGING_FACES, NO_FRAMEWORKS
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Project


_CLASS: Final = re.compile(r"^class (\w*Trainer)\b", re.MULTILINE)
_DEEPEST: Final = 5


def own_trainers(project: Project) -> dict[Path, set[str]]:
    """Return by file what it imports of these from others, by the names that imports write.

    Example:
        >>> from fsdp_migrate.source.project import Project
        >>> own_trainers(Project.read([]))
        {}
    """
    texts = (text for text in project.texts.values() if "Trainer" in text)
    names = {name for text in texts for name in _CLASS.findall(text)}
    found: dict[Path, set[str]] = {}
    for module in project.parsed(project.holding(names)) if names else ():
        owners = imported(project, module, names)
        told = {written for written, owner in owners if is_of_its_own(project, owner)}
        found |= {module.path: told} if told else {}
    return found


def is_of_its_own(project: Project, owner: Definition, depth: int = 0) -> bool:
    """Tell whether a class has no framework's above it, and makes no Trainer of Hugging Face's itself."""
    if not isinstance(owner.node, ast.ClassDef) or depth == _DEEPEST:
        return False
    place = Place(owner.module, "")
    return all(_is_no_trainers(project, base, place, depth + 1) for base in owner.node.bases) and not any(
        isinstance(node, ast.Call) and HUGGING_FACES.match(project.qualified(dotted(node.func) or "?", place))
        for node in walked(owner.node)
    )


def _is_no_trainers(project: Project, base: ast.expr, place: Place, depth: int) -> bool:
    text = dotted(base.value if isinstance(base, ast.Subscript) else base)  # Generic[T]
    if text is None or _is_imported_as_well(project, text, place):
        return False
    owner = project.named(text, place)
    if owner is not None:
        return is_of_its_own(project, owner, depth)
    return text == "object" or project.qualified(text, place).split(".")[0] in NO_FRAMEWORKS


def _is_imported_as_well(project: Project, text: str, place: Place) -> bool:
    """Tell whether a class only takes the place of an unseen one: ``except ImportError: class Base: ...``."""
    written = place.module.imports.get(text) if text in place.module.definitions else None
    if written is None or written.split(".")[0] in NO_FRAMEWORKS:
        return False
    return project.find(place.module, written) is None
