"""Which lines of sources and scripts name a checkpoint that they read, and not one that they write."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import listed
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
_OUT = frozenset({"out", "output"})
_FUNCTIONS = (ast.AsyncFunctionDef, ast.FunctionDef)
_WRITING = re.compile(r"[awx][bt+]*")
_COMMENT = re.compile(r"\s*#")
# The folder that is written before a name; one that a variable is a part of may be any.
_FOLDER = re.compile(r"(?:^|[\s/'\"=:(])(?P<name>[\w.-]+)/$")
# What is put into a text: by `.format`, and by `%`.
_FIELD = re.compile(r"\{[^{}]*\}")
_PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
_HOLE = "\0"
# So that `f"{name}.pt"` does not name every file: a word before the end.
_OWN_WORD = re.compile(r"[a-zA-Z]{3,}")


def with_readers(
    found: Sequence[CheckpointFound], paths: Iterable[str | os.PathLike[str]]
) -> list[CheckpointFound]:
    """Return checkpoints with the lines of sources and shell scripts that read them, as far as these tell."""
    if not found:
        return []
    patterns = {e.path: _Naming(Path(e.path)) for e in found if len(Path(e.path).name) >= _SHORTEST_NAME}
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in find_sources(paths, SUFFIXES | SHELL):
        if file.suffix not in SUFFIXES and not is_shell(file):
            continue
        try:
            text = read_source(file)
            wanted = {path: pattern for path, pattern in patterns.items() if pattern.may_stand_in(text)}
            for path, place in _places(file, text, wanted) if wanted else ():
                if len(places[path]) < _MOST_PLACES and place not in places[path]:
                    places[path].append(place)
        except (FSDPMigrateError, SyntaxError, ValueError, RecursionError):
            continue
    return [replace(each, read_by=tuple(places[each.path])) for each in found]


def said_of_readers(checkpoints: Iterable[CheckpointFound]) -> Iterator[str]:
    """Yield what the lines that name checkpoints need: nothing for a full state, else the output's name.

    Example:
        >>> from fsdp_migrate.source.surroundings import CheckpointFound
        >>> found = CheckpointFound("run/step-1", "DCP", read_by=("train.py:7",), target="run-fsdp2/step-1")
        >>> list(said_of_readers([found]))
        ['Where you convert run/step-1, let train.py:7 lead to run-fsdp2/step-1.']
    """
    for each in checkpoints:
        if not each.read_by:
            continue
        lines = listed(each.read_by, _MOST_PLACES)
        if each.is_full:
            verb = "names" if len(each.read_by) == 1 else "name"
            yield f"{lines} {verb} {each.path}, which stays where it is: convert nothing for that."
        else:
            yield f"Where you convert {each.path}, let {lines} lead to {each.target}."


class _Naming:
    """What a text that names a checkpoint has in it."""

    def __init__(self, path: Path) -> None:
        self.name = name = path.name
        self._folder = path.parent.name
        self._exact = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")
        self._word = max(_OWN_WORD.findall(Path(name).stem), key=len, default="")

    def search(self, text: str) -> re.Match[str] | None:
        """Find the name as it is, where no other folder than its own stands before it."""
        found = self._exact.finditer(text)
        return next((each for each in found if self._may_lie_in(text[: each.start()])), None)

    def _may_lie_in(self, before: str) -> bool:
        folder = _FOLDER.search(before)
        return folder is None or not self._folder or folder["name"] in {self._folder, ".", ".."}

    def may_stand_in(self, text: str) -> bool:
        """Tell whether a source may name it: as it is, or but for what is put in when it runs."""
        return bool(self._word and self._word in text) or self.search(text) is not None

    def fits(self, shape: str) -> bool:
        """Tell whether a text with holes is the name, or ends by it, once something stands in them."""
        last = shape.rpartition("/")[2]
        head = last.rpartition(".")[0] or last
        if _HOLE not in last or not _OWN_WORD.search(head):
            return False
        return re.fullmatch(".+".join(map(re.escape, last.split(_HOLE))), self.name) is not None


def _places(file: Path, text: str, wanted: Mapping[str, _Naming]) -> Iterator[tuple[str, str]]:
    """Yield the checkpoint and the place of each line that names one to read it."""
    if is_shell(file):
        for number, line in enumerate(text.splitlines(), 1):
            if not _COMMENT.match(line):
                yield from ((name, f"{file}:{number}") for name, each in wanted.items() if each.search(line))
        return
    notebook = code_of(text, str(file)) if file.suffix == ".ipynb" else None
    source = _Texts(parse_any(text if notebook is None else notebook.text))
    for node, said in source.texts:
        for path, naming in wanted.items():
            found = naming.search(said)
            if not (found or naming.fits(said)) or not source.is_read(node):
                continue
            # Of a text of several lines the one in which the name stands, if no line end is escaped.
            start = found.start() if found else 0
            at = min(node.lineno + said.count("\n", 0, start), node.end_lineno or node.lineno)
            where = f"{at}" if notebook is None else "cell {}:{}".format(*notebook.place(at))
            yield path, f"{file}:{where}"


@dataclass(eq=False)
class _Texts:
    """The texts of a source, with holes for what is put in when it runs, and what is done with each."""

    tree: ast.Module
    texts: list[tuple[ast.expr, str]] = field(default_factory=list)
    _above: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _loads: defaultdict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node in walked(self.tree):
            self._above.update((child, node) for child in children_of(node))
            if isinstance(node, ast.expr) and (said := _said(node)):
                self.texts.append((node, said))
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._loads[ast.unparse(node)].append(node)
        self.texts.sort(key=lambda each: (each[0].lineno, each[0].col_offset))

    def is_read(self, text: ast.expr) -> bool:
        """Tell whether a text is for reading: it is no docstring, and nothing but writes by it."""
        if isinstance(self._above[text], ast.Expr):
            return False
        answer, statement = self._reads(text)
        if answer is not None:
            return answer
        names = [ast.unparse(target) for target in targets_of(statement)]
        home = self._function(text)
        loads = [load for name in names for load in self._loads[name]]
        # A function's own name is its alone: another one may read by a name that is called the same.
        answers = [
            self._reads(load)[0] for load in loads if "." in ast.unparse(load) or self._is_in(load, home)
        ]
        if any(each is not None for each in answers):
            return any(each is not False for each in answers)
        words = _words_of(home.name) if isinstance(home, _FUNCTIONS) else set()
        if _WRITE & words and not _READ & words:
            return False
        return bool(answers) or not any(_WRITE & _words_of(name) for name in names)

    def _function(self, node: ast.AST) -> ast.AST | None:
        while not isinstance(node, _FUNCTIONS):
            if node not in self._above:
                return None
            node = self._above[node]
        return node

    def _is_in(self, node: ast.AST, home: ast.AST | None) -> bool:
        """Tell whether a place is in a function, or in one that stands in it; all are in the module."""
        around = self._function(node)
        while around is not None and around is not home:
            around = self._function(self._above[around])
        return around is home

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


def _said(node: ast.expr) -> str:
    """Return the text that an expression is, with holes; empty if it is none, or nothing is put into it.

    Example:
        >>> codes = ("'a.pt'", "f'a_{n}.pt'", "'a_%03d.pt' % n", "'a_' + str(n) + '.pt'", "n")
        >>> [_said(ast.parse(code, mode="eval").body).replace(_HOLE, "?") for code in codes]
        ['a.pt', 'a_?.pt', 'a_?.pt', 'a_?.pt', '']
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_said(value) or _HOLE for value in values)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return _PERCENT.sub(_HOLE, text)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = (_said(left), _said(right))
            return "".join(each or _HOLE for each in both) if any(both) else ""
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _FIELD.sub(_HOLE, text)
        case _:
            return ""


def _call_reads(call: ast.Call) -> bool | None:
    """Tell by its name whether a call reads or writes."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        given = (*call.args[-1:], *(each.value for each in call.keywords))
        modes = {each.value for each in given if isinstance(each, ast.Constant)}
        return not any(isinstance(mode, str) and _WRITING.fullmatch(mode) for mode in modes)
    words = _words_of(name)
    if name == "add_argument":
        option = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
        asked = _words_of(str(option))
        return False if asked & (_WRITE | _OUT) and not asked & _READ else None
    return True if _READ & words else False if _WRITE & words else None


def _words_of(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}
