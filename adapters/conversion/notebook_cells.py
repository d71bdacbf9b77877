"""What stands in the cells of a notebook beside its Python: configs, commands of a shell, whole sources."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from fsdp_migrate.adapters.conversion.shell import is_script
from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.adapters.document.nodes import Mapping, Scalar, Sequence
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.document.nodes import Node


Kind = Literal["config", "shell", "source", "python"]
_SHELLS = re.compile(
    r"%%(?:bash|shell|sh|!|system|sx)(?:\s.*)?\Z|%(?:bash|shell|sh|!|system|sx)\Z"
    r"|%%script\b.*\b(?:bash|sh|zsh)\b"
)
_CONFIG = re.compile(r"%%(?:ya?ml|json)\b\s*(.*)")
_FILE = re.compile(r"%%(?:writefile|file)\s+(?:(?:-a|--append)\s+)?(.*)")
_APPENDS = re.compile(r"%%(?:writefile|file)\s+(?:-a|--append)\s")
# IPython takes empty lines away first, and a magic that measures runs another one.
_BEGIN = re.compile(r"(?:[ \t]*\r?\n|%%(?:time|capture)\b[^\n]*\n(?=\s*%%))*")
_OTHER = re.compile(r"%%(?!time\b|timeit\b|capture\b|prun\b)")
_BY_SUFFIX: dict[str, Kind] = {
    **dict.fromkeys(("json", "yaml", "yml"), "config"),
    "py": "source",
}
_ACCELERATES = re.compile(r"^distributed_type\s*:\s*['\"]?FSDP\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell: its number from 1, what its text is, and where that stands in the file.

    ``head`` ends with the line that says what the rest is, such as ``%%writefile fsdp.yaml``; it is empty
    where the cell is Python. ``name`` is the file, or the variable, that the rest goes to.
    """

    number: int
    kind: Kind
    head: str
    name: str
    body: str
    node: Node

    @property
    def is_appended(self) -> bool:
        """Whether it goes on with a file that a cell above has begun: ``%%writefile -a run.sh``."""
        return _APPENDS.match(self.head.splitlines()[-1] if self.head else "") is not None

    @property
    def is_json(self) -> bool | None:
        """Whether a config is JSON; None where its looks have to tell."""
        magic = self.head.splitlines()[-1] if self.head else ""
        if magic.startswith("%%json") or self.name.endswith(".json"):
            return True
        return False if self.name.endswith((".yaml", ".yml")) or magic.startswith("%%y") else None


def cells_of(text: str) -> list[Cell]:
    r"""Return the code cells of a notebook, without those of other languages.

    Raises:
        ConfigError: The text is no notebook.

    Example:
        >>> cell = cells_of('{"cells": [{"cell_type": "code", "source": ["%%sh\\n", "ls"]}]}')[0]
        >>> cell.number, cell.kind, cell.body
        (1, 'shell', 'ls')
    """
    cells = _value(read_json(text), "cells")
    if not isinstance(cells, Sequence):
        msg = "It is no notebook: it has no list of cells."
        raise ConfigError(msg)
    return [cell for number, each in enumerate(cells.items, 1) for cell in _cell(number, each)]


def with_bodies(text: str, bodies: dict[int, str]) -> str:
    """Return a notebook in which some cells hold other texts; every other character stays."""
    for cell in sorted(cells_of(text), key=lambda each: -each.node.start):
        if cell.number in bodies:
            new = _written(f"{cell.head}{bodies[cell.number]}", cell.node, text)
            text = f"{text[: cell.node.start]}{new}{text[cell.node.end :]}"
    return text


def _value(node: Node, name: str) -> Node | None:
    entries = node.entries if isinstance(node, Mapping) else []
    return next((e.value for e in entries if isinstance(e.key, Scalar) and e.key.value == name), None)


def _cell(number: int, node: Node) -> Iterator[Cell]:
    kind, source = _value(node, "cell_type"), _value(node, "source")
    if not isinstance(kind, Scalar) or kind.value != "code" or source is None:
        return
    lines = source.items if isinstance(source, Sequence) else [source]
    code = "".join(line.value for line in lines if isinstance(line, Scalar))
    start = _BEGIN.match(code)
    above = start[0] if start is not None else ""
    first, end, rest = code[len(above) :].partition("\n")
    found = _kind_of(first.strip(), rest)
    if found is None:
        return
    what, name = found
    head, body = ("", code) if what == "python" else (f"{above}{first}{end}", rest)
    yield Cell(number, what, head, name, body, source)


def _kind_of(first: str, rest: str) -> tuple[Kind, str] | None:
    """Return what a cell holds by its first line, and the name it has there; None of other languages."""
    if _SHELLS.match(first):
        return "shell", ""
    if config := _CONFIG.match(first):
        return "config", config[1].strip()
    if file := _FILE.match(first):
        name = " ".join(_words(file[1]))
        is_accelerates = _ACCELERATES.search(rest) is not None
        path = PurePosixPath(name)
        suffix = path.suffix or path.name
        kind = _BY_SUFFIX.get(suffix.lower().lstrip(".")) or ("config" if is_accelerates else None)
        kind = "shell" if is_script(suffix, rest) else kind
        return None if kind is None else (kind, name)
    return None if _OTHER.match(first) else ("python", "")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text.strip()]


def _written(code: str, node: Node, text: str) -> str:
    """Return a cell's text as JSON, in the way in which it stood there; lines that stay are not touched."""
    before = text[node.start : node.end]
    is_ascii = before.isascii()
    if not isinstance(node, Sequence):
        return json.dumps(code, ensure_ascii=is_ascii)
    kept = {item.value: item.text for item in node.items if isinstance(item, Scalar)}
    lines = [kept.get(line) or json.dumps(line, ensure_ascii=is_ascii) for line in _lines(code)]
    items = node.items
    if len(items) > 1:
        between = text[items[0].end : items[1].start]
    else:
        start = text[node.start + 1 : items[0].start] if items else ""
        between = f",{start}" if start.strip() or "\n" in start else ", "
    opening = text[node.start : items[0].start] if items else "["
    closing = text[items[-1].end : node.end] if items else "]"
    return f"{opening}{between.join(lines)}{closing}"


def _lines(code: str) -> list[str]:
    """Return lines as notebooks keep them: with line feeds, and no others end one."""
    parts = code.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
