"""Models of the project that rank 0 cannot load for all under Accelerate's FSDP2: it stops in ``prepare``.

That is where ``cpu_ram_efficient_loading`` is on: of BatchNorm's and other buffers, and of a model's own
parameters. Models of transformers mostly have neither.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.adapters.conversion.project_ties import ties_anew, ties_in
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import listed
from fsdp_migrate.source.files import SETTINGS, find_sources, read_source
from fsdp_migrate.source.models_given import ModelsGiven, calls_in, parsed, word_of
from fsdp_migrate.source.python.accelerators import is_accelerator, method_in, prepares
from fsdp_migrate.source.python.walked import last_word


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


_GIVEN: Final = re.compile(r"cpu_ram_efficient_loading[\"']?\s*[:=\s]\s*[\"']?(\w+)")
# Of Accelerate's launcher, which turns it on where nothing is said; HF Trainer alone does not.
_LAUNCHED: Final = re.compile(r"distributed_type[\"']?\s*:\s*[\"']?FSDP\b|--use[_-]fsdp\b")
_CLASS: Final = re.compile(r"^class\s+(\w+)", re.MULTILINE)
_BUFFERED: Final = re.compile(r"(?:Sync)?BatchNorm(?:\d?d)?|spectral_norm")
_ON: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_DEEPEST: Final = 4
_MOST: Final = 3
_LARGEST: Final = 1_000_000


class NotLoaded(NamedTuple):
    """Where Accelerate is given models that rank 0 cannot load for all, and what of them."""

    stops: tuple[str, ...] = ()
    """At what these hold its FSDP2 stops."""
    torn: tuple[str, ...] = ()
    """The weights that these tie it trains apart."""


def find_not_loaded(paths: Iterable[str | os.PathLike[str]]) -> NotLoaded:
    """Return where Accelerate is given models that rank 0 cannot load for all, and what of them.

    Args:
        paths: Files and folders. Where no settings of Accelerate's load so, there is nothing.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_not_loaded(["fsdp_migrate/source"])
        NotLoaded(stops=(), torn=())
    """
    found = list(paths)
    sources = dict(read(find_sources(found)))
    preparing = {path: code for path, code in sources.items() if prepares(code)}
    if not preparing:
        return NotLoaded()
    in_settings = loads_so(code for _, code in read(find_sources(found, SETTINGS)))
    if not in_settings and not says_so(preparing.values()):
        return NotLoaded()
    classes = _Classes(sources)
    models = ModelsGiven(sources, classes.names)
    given = [each for path in preparing for each in _of_file(path, classes, models)]
    stops = [f"{place} has {listed(held, _MOST)}" for place, held, _ in given if held]
    torn = [f"{place} ties {listed(ties, _MOST)}" for place, _, ties in given if ties]
    return NotLoaded(tuple(dict.fromkeys(stops)), tuple(dict.fromkeys(torn)))


def read(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield files with their texts, but those that cannot be read, or are very large."""
    for path in files:
        text = _text_of(path)
        if text is not None:
            yield path, text


def _text_of(path: Path) -> str | None:
    try:
        return read_source(path) if path.stat().st_size <= _LARGEST else None
    except (FSDPMigrateError, OSError):
        return None


def loads_so(texts: Iterable[str]) -> bool:
    """Tell whether settings turn it on, or leave it to Accelerate's launcher."""
    return any(says_so([text]) or (not _GIVEN.search(text) and _LAUNCHED.search(text)) for text in texts)


def says_so(texts: Iterable[str]) -> bool:
    """Tell whether settings, or sources that hold them, turn it on themselves."""
    return any(value.lower() in _ON for text in texts for value in _GIVEN.findall(text))


class _Classes:
    """The classes of a project by their names, read where they are asked for."""

    def __init__(self, sources: Mapping[Path, str]) -> None:
        self._codes = {name: code for code in sources.values() for name in _CLASS.findall(code)}
        self._nodes: dict[str, ast.ClassDef] = {}
        self.names = frozenset(self._codes)

    def __contains__(self, name: object) -> bool:
        return name in self._codes

    def held(
        self, name: str, depth: int = 0, *, is_part: bool = False, chosen: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return what a model of this class holds that cannot be loaded.

        ``chosen``: the classes that a class below gives to names of the class, ``router = TopRouter``.
        """
        node = self._node(name) if depth < _DEEPEST else None
        if node is None:
            return []
        chosen = {**self._chosen(node), **(chosen or {})}
        bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
        own = [] if is_part or any("PreTrained" in base for base in bases) else list(_own_parameters(node))
        found = [*own, *_buffers(node)]
        for base in bases:
            found += self.held(base, depth + 1, is_part=is_part, chosen=chosen)
        for call in (chosen.get(each, each) for each in _calls(node)):
            if call != name and call in self:
                found += self.held(call, depth + 1, is_part=True)
        return list(dict.fromkeys(found))

    def ties(self, name: str, depth: int = 0) -> list[str]:
        """Return the weights that a model of this class ties, and has no method to tie again."""
        node = self._node(name) if depth < _DEEPEST else None
        if node is None or (depth == 0 and ties_anew(node, self._around(node))):
            return []
        found = [f"`{tie.name}`" for tie in ties_in(node)]
        chosen = self._chosen(node)
        bases = (ast.unparse(base).split(".")[-1] for base in node.bases)
        for each in (*bases, *(chosen.get(call, call) for call in _calls(node))):
            if each != name and each in self:
                found += self.ties(each, depth + 1)
        return list(dict.fromkeys(found))

    def _around(self, node: ast.ClassDef) -> dict[str, ast.ClassDef]:
        """Return the classes of the project that one is made from."""
        left, found = [node], {node.name: node}
        while left:
            for base in left.pop().bases:
                above = self._node(ast.unparse(base).split(".")[-1])
                if above is not None and above.name not in found:
                    found[above.name] = above
                    left.append(above)
        return found

    def _chosen(self, node: ast.ClassDef) -> dict[str, str]:
        """Return the names of a class that stand for another class of the project."""
        lines = ((each.targets, each.value) for each in node.body if isinstance(each, ast.Assign))
        words = ((target, word_of(value)) for targets, value in lines for target in targets)
        return {each.id: word for each, word in words if isinstance(each, ast.Name) and word in self}

    def _node(self, name: str) -> ast.ClassDef | None:
        if name not in self._nodes and name in self._codes:
            for each in parsed(self._codes[name]).body:
                if isinstance(each, ast.ClassDef):
                    self._nodes[each.name] = each
        return self._nodes.get(name)


def _calls(node: ast.AST) -> Iterator[str]:
    """Yield the last words of what is called: ``Critic`` of ``models.Critic(8)``."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield last_word(call.func)


def _text(node: ast.expr) -> str:
    return ast.unparse(node).strip("'\"")


def _own_parameters(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Call)
            and last_word(each.value.func) == "Parameter"
        ):
            targets = (target for target in each.targets if isinstance(target, ast.Attribute))
            yield from (f"`{target.attr}`" for target in targets if ast.unparse(target.value) == "self")
        elif isinstance(each, ast.Call) and ast.unparse(each.func) == "self.register_parameter" and each.args:
            yield f"`{_text(each.args[0])}`"


def _buffers(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if not isinstance(each, ast.Call):
            continue
        if _BUFFERED.fullmatch(last_word(each.func)):
            yield f"{last_word(each.func)}'s buffers"
        elif last_word(each.func) == "register_buffer" and each.args:
            last = [*each.args[2:], *(word.value for word in each.keywords if word.arg == "persistent")]
            if not any(isinstance(value, ast.Constant) and value.value is False for value in last):
                yield f"the buffer `{_text(each.args[0])}`"


def _of_file(
    path: Path, classes: _Classes, models: ModelsGiven
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the models that are prepared in a file: where, what stops it, and what is tied."""
    tree = models.tree(path)
    for call, function in calls_in(tree):
        func = method_in(tree, call.func)
        if func is None or func.attr != "prepare" or not is_accelerator(ast.unparse(func.value), tree):
            continue
        for arg in call.args:
            for name in models.classes_of(arg, function, path):
                yield f"{path}:{call.lineno}: {name}", classes.held(name), classes.ties(name)
