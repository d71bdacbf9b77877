"""FSDP1's names that a file has, and others import from it: ``from utils import FSDP``.

It imports them, or gives them names of its own: ``Sharded = FSDP``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.project_names import targets_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project


_DEEPEST = 4
_MADE = (ast.Call, ast.Dict, ast.List, ast.Tuple)


@dataclass(eq=False)
class HandedOn:
    """Which names of a project's files are FSDP1's by way of other files, and which a file hands on."""

    project: Project
    names: dict[Path, dict[str, str]] = field(default_factory=dict)
    """What a file's imports stand for: ``{"utils.FSDP": "torch.distributed.fsdp.X"}``."""
    taken: dict[Path, set[str]] = field(default_factory=dict)
    """The names that others import from a file."""

    def __post_init__(self) -> None:
        of_torch = self._modules_with(catalog.PACKAGE)
        for module in of_torch:
            self._rename(module)
        exporters = [m for m in of_torch if _own(m) or _stars(m)]
        for _ in range(_DEEPEST):
            words = {name for module in exporters for name in _own(module)}
            words |= catalog.PUBLIC_NAMES if any(map(_stars, exporters)) else set()
            known = set(self.names)
            for module in self._modules_with(*words) if words else ():
                self._look(module)
            # What these files import, others may import from them in turn.
            exporters = [m for m in map(self.project.module, set(self.names) - known) if m is not None]
        for module in of_torch:
            self._note_values(module)

    def _note_values(self, module: Module) -> None:
        """Note what a file makes at its top level, of FSDP1's things, and others take: ``FULL = (...)``."""
        made = {name for name, value in _assigned(module.tree.body) if isinstance(value, _MADE)}
        words = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(made)))})\b")
        for other in self._modules_with(*made) if made else ():
            if other is not module and any(module.path in p for p in self._imported_by(other)):
                found = words.findall(self.project.texts[other.path])
                self.taken.setdefault(module.path, set()).update(found)

    def _imported_by(self, module: Module) -> Iterator[list[Path]]:
        """Yield the files that each import of a file may be of."""
        for written in {*module.imports.values(), *module.stars}:
            yield self.project.paths(module, written)
            yield self.project.paths(module, written.rpartition(".")[0])

    def _modules_with(self, *words: str) -> list[Module]:
        found = (self.project.module(path) for path in self.project.holding(words))
        return [module for module in found if module is not None]

    def _rename(self, module: Module) -> None:
        """Note the names that a file gives to FSDP1's things, as if it imported them so."""
        values: dict[str, list[ast.expr]] = {}
        for name, value in _assigned(module.tree.body):
            values.setdefault(name, []).append(value)
        for name, given in values.items():
            known = {self._written(module, value) for value in given}
            written = known.pop()
            if not known and written and name not in module.imports and name not in module.definitions:
                module.imports[name] = written

    def _written(self, module: Module, value: ast.expr) -> str:
        """Return what a name of FSDP1's is called, if a value is one: no member of an enum, or method."""
        written = self.project.qualified(dotted(value) or "", Place(module, ""))
        return written if "." not in (catalog.fsdp1_name(written) or ".") else ""

    def _look(self, module: Module) -> None:
        for local, written in list(module.imports.items()):
            if written.startswith("torch."):
                continue
            known = self._origin(module, written, 0)
            if known is not None:
                self._note(module, written, known)
                # From here on as if it were torch's own import: so those who import it from this file are
                # found in turn.
                module.imports[local] = known
                continue
            # `import utils`, and then `utils.FSDP`.
            for path in self.project.paths(module, written):
                self._attributes(module, local, written, path)
        for star in module.stars:
            for path in self.project.paths(module, star):
                self._by_star(module, star, path)
        if module.path in self.names:
            self._rename(module)

    def _attributes(self, module: Module, local: str, written: str, path: Path) -> None:
        inner = self.project.module(path)
        text = self.project.texts[module.path]
        for name in _own(inner) if inner is not None else ():
            if re.search(rf"\b{re.escape(local)}\.{re.escape(name)}\b", text):
                known = self._origin(module, f"{written}.{name}", 0)
                if known is not None:
                    self._note(module, f"{written}.{name}", known)

    def _by_star(self, module: Module, star: str, path: Path) -> None:
        inner = self.project.module(path)
        text = self.project.texts[module.path]
        for name in _own(inner) if inner is not None else ():
            bound = name in module.imports or name in module.definitions
            if not bound and re.search(rf"\b{re.escape(name)}\b", text):
                known = self._origin(module, f"{star}.{name}", 0)
                if known is not None:
                    self._note(module, f"{star}.{name}", known)
                    module.imports[name] = known

    def _note(self, module: Module, written: str, known: str) -> None:
        self.names.setdefault(module.path, {})[written] = known

    def _origin(self, module: Module, written: str, depth: int) -> str | None:
        """Return the name of FSDP1's that an import of a project's file stands for, if it is one."""
        start, _, name = written.rpartition(".")
        if depth > _DEEPEST or not start:
            return None
        for path in self.project.paths(module, start):
            inner = self.project.module(path)
            if inner is None or name in inner.definitions or inner is module:
                continue
            known = self._in(inner, name, depth)
            if known is not None:
                self.taken.setdefault(path, set()).add(name)
                return known
        return None

    def _in(self, module: Module, name: str, depth: int) -> str | None:
        imported = module.imports.get(name)
        if imported is not None:
            if catalog.fsdp1_name(imported) is not None:
                return imported
            return self._origin(module, imported, depth + 1)
        for star in module.stars:
            if star.startswith(catalog.PACKAGE) and name in catalog.PUBLIC_NAMES:
                return f"{star}.{name}"
            known = self._origin(module, f"{star}.{name}", depth + 1)
            if known is not None:
                return known
        return None


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module's own statements give values, without those that stand for nothing."""
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = targets_of(node)
            is_nothing = isinstance(node.value, ast.Constant) and node.value.value is None
            parts = [] if is_nothing else [each for target in targets for each in ast.walk(target)]
            for part in parts:
                # Of `settings.cls = FSDP` the name is only read.
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id, node.value
        elif isinstance(node, (ast.If, ast.Try)):
            handlers = [each for handler in getattr(node, "handlers", ()) for each in handler.body]
            finals = getattr(node, "finalbody", ())
            yield from _assigned([*node.body, *handlers, *node.orelse, *finals])


def _own(module: Module) -> list[str]:
    """Return the names by which a file imports things of FSDP1's."""
    return [name for name, written in module.imports.items() if catalog.fsdp1_name(written) is not None]


def _stars(module: Module) -> bool:
    return any(star.startswith(catalog.PACKAGE) for star in module.stars)
