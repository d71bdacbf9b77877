"""Names of a file that are objects of a framework's class, Accelerators and Fabrics, which others make.

``from setup import hf``, ``hf, config = build()``, ``self.hf`` of a base class. What a file shows by itself
stands in :mod:`fsdp_migrate.source.python.named_objects`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.objects_given import objects_given
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.accelerators import ACCELERATORS
from fsdp_migrate.source.python.fabric_models import FABRICS
from fsdp_migrate.source.python.heirs import OF_KINDS
from fsdp_migrate.source.python.named_objects import NamedObjects, last_part, names_in
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.reach import imports_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.heirs import Heirs
    from fsdp_migrate.source.project import Module, Project


Objects = dict[str, frozenset[str]]
KINDS: Final = {"accelerate": ACCELERATORS, "fabric": FABRICS}
"""By framework."""
_STEPS: Final = 2
_RENAMED: Final = re.compile(r"\b(\w+)[ \t]+as[ \t]+(\w+)")


def made_objects(project: Project, heirs: Mapping[Path, Heirs]) -> dict[Path, Objects]:
    """Return by file and class the names that are such objects, as the files say that it imports.

    ``heirs``: the classes of the project that derive from the frameworks', by the files that import them.
    """
    found: dict[Path, Objects] = {}
    for kind in KINDS.values():
        asks = re.compile(rf"\.(?:{'|'.join(sorted(kind.shards))})\(")
        sharding = (path for path, text in project.texts.items() if asks.search(text))
        unknown = {path: names for path in sharding if (names := kind.unknown_in(project.texts[path]))}
        given = objects_given(project, unknown, kind) if unknown else {}
        for path, names in unknown.items():
            if told := names & (_told(project, path, kind) | given.get(path, set())):
                found.setdefault(path, {})[kind.kind] = told
        for path, classes in heirs.items():
            made = frozenset(_of_heirs(project, path, classes, OF_KINDS[kind.kind]))
            if made:
                known = found.setdefault(path, {})
                known[kind.kind] = known.get(kind.kind, frozenset()) | made
    return found


def _of_heirs(project: Project, path: Path, classes: Heirs, base: re.Pattern[str]) -> Iterator[str]:
    """Yield the names that a file gives objects of classes that it imports, and that derive from one."""
    module = project.module(path)
    for name, written in module.imports.items() if module is not None else ():
        for heir, leads in classes.items():
            if heir == written or heir.startswith(f"{written}."):
                text = f"{name}{heir.removeprefix(written)}".replace(".", r"\.")
                is_one = any(map(base.match, leads))
                yield from _given(project.texts[path], text, None) if is_one else ()


def _told(project: Project, path: Path, kind: NamedObjects) -> frozenset[str]:
    """Return the names that files have for such objects, or for what gives one, which a file imports."""
    names: set[str] = set()
    for home in _homes(project, path, kind):
        known = names_in(kind, project.texts[home])
        names |= known | {new for old, new in _RENAMED.findall(project.texts[path]) if old in known}
        module = project.module(home)
        for function, place in _makers(module, kind, project.texts[home]) if module is not None else ():
            names |= set(_given(project.texts[path], function, place))
    return frozenset(names)


def _homes(project: Project, path: Path, kind: NamedObjects) -> Iterator[Path]:
    """Yield the files that a file imports, and these, in which such objects are made."""
    seen, latest = {path}, {path}
    for _ in range(_STEPS):
        latest = {each for one in latest for each in imports_of(project, one)} - seen
        seen |= latest
    yield from (each for each in seen - {path} if kind.kind in project.texts[each])


def _makers(module: Module, kind: NamedObjects, text: str) -> Iterator[tuple[str, int | None]]:
    """Yield the functions of a file that give such an object, with its place in the tuple that they give."""
    known = names_in(kind, text)

    def is_one(node: ast.expr) -> bool:
        is_made = isinstance(node, ast.Call) and last_part(dotted(node.func) or "") == kind.kind
        return is_made or last_part(dotted(node) or "") in known

    for name, definition in module.definitions.items():
        for each in walked(definition.node):
            value = each.value if isinstance(each, ast.Return) else None
            parts = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
            for place, part in enumerate(parts):
                if is_one(part):
                    yield last_part(name), place if isinstance(value, ast.Tuple) else None


def _given(text: str, function: str, place: int | None) -> Iterator[str]:
    """Yield the names that a text gives what a function gives: ``hf, config = build()``."""
    for targets in re.findall(
        rf"^[ \t]*([\w., \t]+?)[ \t]*=[ \t]*(?:\w+\.)*{function}\(", text, re.MULTILINE
    ):
        names = [last_part(each.strip()) for each in targets.split(",")]
        if place is None and len(names) == 1:
            yield names[0]
        elif place is not None and place < len(names) > 1:
            yield names[place]
