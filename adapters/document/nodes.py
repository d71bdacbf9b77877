"""A config file as a tree of nodes that know where they stand in the text.

Nothing is built from the file but these nodes and plain values, whatever tags it has. The tree serves to find
out which characters to replace; the text itself is never written anew
(:mod:`fsdp_migrate.adapters.document.edits`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False, slots=True)
class Scalar:
    """A word, a number, or nothing. ``text`` is what stands in the file between ``start`` and ``end``."""

    start: int
    end: int
    value: str
    text: str
    quoted: bool
    anchor: str | None = None


@dataclass(eq=False, slots=True)
class Entry:
    """A key and its value in a mapping."""

    key: Node
    value: Node


@dataclass(eq=False, slots=True)
class Mapping:
    """Keys and values, in braces (``flow``) or one below the other."""

    start: int
    end: int
    flow: bool
    entries: list[Entry] = field(default_factory=list)
    anchor: str | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """Values, in brackets (``flow``) or one below the other."""

    start: int
    end: int
    flow: bool
    items: list[Node] = field(default_factory=list)
    anchor: str | None = None


@dataclass(eq=False, slots=True)
class Alias:
    """A place that stands for an anchored node (``*name``)."""

    start: int
    end: int
    target: Node


Node: TypeAlias = "Scalar | Mapping | Sequence | Alias"

# What PyYAML, with which these frameworks read, takes for something other than a word.
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
for _yes, _no in (("true", "false"), ("yes", "no"), ("on", "off")):
    for _change in (str.lower, str.title, str.upper):
        _WORDS[_change(_yes)] = True
        _WORDS[_change(_no)] = False
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_LONGEST_INT = 4000  # digits; Python reads 4300, and none of them counts anything
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*(?:[eE][-+]?[0-9]+)?\Z|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+\Z"
)
REFERENCE = re.compile(r"\$\{|\{\{|\{%|<[A-Z][A-Z0-9_/]*>|\$[A-Za-z_]|\$\(")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that is known only elsewhere: ``${...}``, ``{{...}}``, ``$VARIABLE``."""

    text: str

    def __str__(self) -> str:
        return self.text


def target(node: Node) -> Node:
    """Return the node that an alias stands for, or the node itself."""
    while isinstance(node, Alias):
        node = node.target
    return node


def key_text(entry: Entry) -> str | None:
    """Return the key of an entry without the spaces around it, or None where it is no word."""
    key = target(entry.key)
    return key.value.strip() if isinstance(key, Scalar) else None


def scalar_value(node: Scalar) -> Any:
    """Return what a scalar means: None, a bool, an int, a float, a word, or a :class:`Reference`.

    Example:
        >>> scalar_value(Scalar(0, 3, "yes", "yes", False)), scalar_value(Scalar(0, 3, "yes", "'yes'", True))
        (True, 'yes')
        >>> scalar_value(Scalar(0, 7, "${size}", "${size}", False))
        Reference(text='${size}')
    """
    if REFERENCE.search(node.value):
        return Reference(node.value)
    if node.quoted:
        return node.value
    if node.value in _WORDS:
        return _WORDS[node.value]
    if _INT.match(node.value) and len(node.value) < _LONGEST_INT:
        return int(node.value.replace("_", ""))
    if _FLOAT.match(node.value) and node.value not in {".", "+.", "-."}:
        return float(node.value.replace("_", ""))
    return node.value


def effective(mapping: Mapping) -> dict[str, Entry]:
    """Return the entries by key as a reader sees them: merge keys (``<<``) resolved, the last of equals.

    Example:
        >>> effective(Mapping(0, 0, True))
        {}
    """
    return _effective(mapping, ())


def _effective(mapping: Mapping, above: tuple[Mapping, ...]) -> dict[str, Entry]:
    merged: dict[str, Entry] = {}
    own: dict[str, Entry] = {}
    for entry in mapping.entries:
        name = key_text(entry)
        if name == "<<":
            for part in merge_parts(entry):
                if part not in (*above, mapping):
                    for key, value in _effective(part, (*above, mapping)).items():
                        merged.setdefault(key, value)
        elif name is not None:
            own[name] = entry
    return {**merged, **own}


def merge_parts(entry: Entry) -> list[Mapping]:
    """Return the mappings that a merge key brings in, the ones that win first."""
    value = target(entry.value)
    parts = [target(item) for item in value.items] if isinstance(value, Sequence) else [value]
    return [part for part in parts if isinstance(part, Mapping)]


def plain(node: Node, depth: int = 0) -> Any:
    """Return the plain value of a node: dicts, lists and scalars. What is nested too deeply is None."""
    node = target(node)
    if depth > 40:
        return None
    if isinstance(node, Scalar):
        return scalar_value(node)
    if isinstance(node, Sequence):
        return [plain(item, depth + 1) for item in node.items]
    if isinstance(node, Mapping):
        return {key: plain(entry.value, depth + 1) for key, entry in effective(node).items()}
    return None


def walk(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield every node with its path, the outer ones first. Aliases are yielded, and not followed."""
    yield path, node
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield from walk(entry.value, (*path, key_text(entry) or "?"))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from walk(item, (*path, str(index)))
