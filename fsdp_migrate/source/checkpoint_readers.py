"""Which lines of sources and scripts name a checkpoint that they read, and not one that they write."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.files import SHELL, SUFFIXES, find_sources, is_shell, read_source
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.notebooks import code_of
from fsdp_migrate.source.python.walked import children_of, walked


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.source.surroundings import CheckpointFound


_SHORTEST_NAME = 4
_MOST_PLACES = 5
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_READ = frozenset({"from", "load", "loads", "read", "restore", "resume"})
_WRITE = frozenset(
    {"delete", "dump", "export", "makedirs", "mkdir", "remove", "rmtree", "save", "unlink", "upload", "write"}
)
_WRITING = re.compile(r"[awx][bt+]*")
_COMMENT = re.compile(r"\s*#")


def with_readers(
    found: Sequence[CheckpointFound], paths: Iterable[str | os.PathLike[str]]
) -> list[CheckpointFound]:
    """Return checkpoints with the lines of sources and shell scripts that read them, as far as these tell."""
    if not found:
        return []
    names = {each.path: Path(each.path).name for each in found}
    patterns = {path: _naming(name) for path, name in names.items() if len(name) >= _SHORTEST_NAME}
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in find_sources(paths, SUFFIXES | SHELL):
        if file.suffix not in SUFFIXES and not is_shell(file):
            continue
        try:
            text = read_source(file)
            wanted = {path: pattern for path, pattern in patterns.items() if pattern.search(text)}
            for path, place in _places(file, text, wanted) if wanted else ():
                if len(places[path]) < _MOST_PLACES and place not in places[path]:
                    places[path].append(place)
        except (FSDPMigrateError, SyntaxError, ValueError, RecursionError):
            continue
    return [replace(each, read_by=tuple(places[each.path])) for each in found]


def _naming(name: str) -> re.Pattern[str]:
    """Return what a text that names a checkpoint has in it."""
    return re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")


def _places(file: Path, text: str, wanted: Mapping[str, re.Pattern[str]]) -> Iterator[tuple[str, str]]:
    """Yield the checkpoint and the place of each line that names one to read it."""
    if is_shell(file):
        for number, line in enumerate(text.splitlines(), 1):
            if not _COMMENT.match(line):
                yield from ((name, f"{file}:{number}") for name, each in wanted.items() if each.search(line))
        return
    notebook = code_of(text, str(file)) if file.suffix == ".ipynb" else None
    source = _Texts(parse_any(text if notebook is None else notebook.text))
    for node, said in source.texts:
        for path, pattern in wanted.items():
            found = pattern.search(said)
            if found is None or not source.is_read(node):
                continue
            # Of a text of several lines the one in which the name stands, if no line end is escaped.
            at = min(node.lineno + said.count("\n", 0, found.start()), node.end_lineno or node.lineno)
            where = f"{at}" if notebook is None else "cell {}:{}".format(*notebook.place(at))
            yield path, f"{file}:{where}"


@dataclass(eq=False)
class _Texts:
    """The texts of a source, and what is done with each."""

    tree: ast.Module
    texts: list[tuple[ast.Constant, str]] = field(default_factory=list)
    _above: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _loads: defaultdict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node in walked(self.tree):
            self._above.update((child, node) for child in children_of(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.texts.append((node, node.value))
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._loads[ast.unparse(node)].append(node)
        self.texts.sort(key=lambda each: (each[0].lineno, each[0].col_offset))

    def is_read(self, text: ast.Constant) -> bool:
        """Tell whether a text is for reading: it is no docstring, and nothing but writes by it."""
        if isinstance(self._above[text], ast.Expr):
            return False
        answer, statement = self._reads(text)
        if answer is not None:
            return answer
        names = [ast.unparse(target) for target in targets_of(statement)]
        answers = [self._reads(load)[0] for name in names for load in self._loads[name]]
        if answers:
            return any(each is not False for each in answers)
        return not any(_WRITE & _words_of(name) for name in names)

    def _reads(self, node: ast.AST) -> tuple[bool | None, ast.AST]:
        """Tell what is done with a value, or None, and return the statement that it stands in."""
        while not isinstance(node, ast.stmt):
            above = self._above[node]
            if isinstance(above, ast.keyword) and _WRITE & _words_of(above.arg or ""):
                return False, node
            if isinstance(above, ast.Call) and node is not above.func:
                answer = _call_reads(above)
                if answer is not None:
                    return answer, node
            node = above
        return None, node


def _call_reads(call: ast.Call) -> bool | None:
    """Tell by its name whether a call reads or writes."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        given = (*call.args[-1:], *(each.value for each in call.keywords))
        modes = {each.value for each in given if isinstance(each, ast.Constant)}
        return not any(isinstance(mode, str) and _WRITING.fullmatch(mode) for mode in modes)
    words = _words_of(name)
    return True if _READ & words else False if _WRITE & words else None


def _words_of(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}
