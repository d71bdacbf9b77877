"""Which files of a project shard a model by FSDP, or have a framework do so, as their trees say it.

Comments, texts for readers, classes of other packages and a project's own of the same names say nothing.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import of_others
from fsdp_migrate.source.sharding_words import NAMES, shards


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project


_DEEPEST: Final = 5
_NAMES: Final = re.compile(rf"\b(?:{'|'.join(sorted(NAMES))})\b")
_ASKS: Final = frozenset({"fsdp", "fsdp_config"})


@dataclass(eq=False)
class ShardingFiles:
    """Answers so for a project. Reads only."""

    project: Project
    _known: dict[tuple[Path, frozenset[str]], bool] = field(default_factory=dict, repr=False)

    def shards(self, path: Path, without: frozenset[str] = frozenset()) -> bool:
        """Tell whether a file has what shards a model, some names left out."""
        if (path, without) not in self._known:
            text = self.project.texts[path]
            self._known[path, without] = shards(text) and self._says_so(path, without)
        return self._known[path, without]

    def is_of_others(self) -> bool:
        """Tell whether none does, and a class of FSDP's name is another package's, or the project's own."""
        named = [path for path, text in self.project.texts.items() if shards(text)]
        return bool(named) and not any(map(self.shards, named)) and any(map(self._has_another, named))

    def _has_another(self, path: Path) -> bool:
        module = self.project.module(path)
        if module is None:
            return False
        imported = (each for name, each in module.imports.items() if catalog.FSDP in {name, _last(each)})
        return catalog.FSDP in module.definitions or any(
            self._is_of_others(each, module) for each in imported
        )

    def _says_so(self, path: Path, without: frozenset[str]) -> bool:
        module = self.project.module(path)
        if module is None:
            return shards(self.project.texts[path])
        notes = _notes(module)
        found = (word for node in walked(module.tree) for word in self._words(node, module, notes))
        return any(word not in without for word in found)

    def telling(self, module: Module) -> list[ast.AST]:
        """Return the nodes by which a file shards a model."""
        notes = _notes(module)
        return [node for node in walked(module.tree) if any(True for _ in self._words(node, module, notes))]

    def _words(self, node: ast.AST, module: Module, notes: set[int]) -> Iterator[str]:
        """Yield the words in a node itself by which a model is sharded."""
        if isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from self._imported((f"{start}.{each.name}" for each in node.names), module)
        elif isinstance(node, ast.Import):
            yield from self._imported((each.name for each in node.names), module)
        elif isinstance(node, (ast.Attribute, ast.Name)):
            yield from self._named(node, module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield from _words_of(node.value, module)
        elif isinstance(node, ast.keyword):
            yield from _asked(node.arg, node.value)
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            placed = zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)
            for one, value in (*placed, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
                yield from _asked(one.arg, value)

    def _imported(self, written: Iterator[str], module: Module) -> Iterator[str]:
        for each in written:
            if _last(each) in NAMES and not self._is_of_others(each, module):
                yield _last(each)

    def _named(self, node: ast.Attribute | ast.Name, module: Module) -> Iterator[str]:
        text = dotted(node) or (node.attr if isinstance(node, ast.Attribute) else "")
        last = _last(text)
        if text.endswith("DistributedType.FSDP"):
            yield last
        if last in NAMES and not _is_known(text, module):
            written = self.project.qualified(text, Place(module, ""))
            yield from () if written and self._is_of_others(written, module) else (last,)

    def _is_of_others(self, written: str, module: Module, depth: int = 0) -> bool:
        """Tell whether an imported name is another package's, or a class or function of the project."""
        if of_others(written) or self.project.find(module, written) is not None:
            return True
        start, _, last = written.rpartition(".")
        for path in self.project.paths(module, start) if depth < _DEEPEST else ():
            behind = self.project.module(path)
            if behind is not None and last in behind.imports:
                return self._is_of_others(behind.imports[last], behind, depth + 1)
        return False


def _notes(module: Module) -> set[int]:
    """Return the expressions that stand alone: texts for readers."""
    return {id(each.value) for each in walked(module.tree) if isinstance(each, ast.Expr)}


def _last(written: str) -> str:
    return written.rpartition(".")[2]


def _is_known(name: str, module: Module) -> bool:
    """Tell whether a name is defined in a file, or imported: what is imported is judged there."""
    return name in module.definitions or name in module.imports


def _words_of(text: str, module: Module) -> Iterator[str]:
    """Yield what shards in a text that is no note: a name to be looked up, or a word of a command."""
    if _last(text) in NAMES:
        yield from () if _is_known(text, module) else (_last(text),)
    elif shards(_NAMES.sub("", text)):
        yield text


def _asked(name: str | None, value: ast.expr | None) -> Iterator[str]:
    """Yield what an argument asks a framework for: ``fsdp="full_shard"``, ``strategy="fsdp"``."""
    given = value.value if isinstance(value, ast.Constant) else value
    if name in _ASKS and given is not None and given is not False and given != "":
        yield name or ""
    elif name == "strategy" and isinstance(given, str) and given.startswith("fsdp"):
        yield given
