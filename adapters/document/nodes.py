"""A config file as a tree of nodes that know where they stand in the text.

Nothing is built from the file but these nodes and plain values, whatever tags it has. The tree serves to find
out which characters to replace; the text itself is never written anew
(:mod:`fsdp_migrate.adapters.document.edits`).
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False, slots=True)
class Scalar:
    """A word, a number, or nothing. ``text`` is what stands in the file between ``start`` and ``end``.

    ``is_json`` tells that it stands in JSON, whose numbers are others than YAML's.
    """

    start: int
    end: int
    value: str
    text: str
    quoted: bool
    anchor: str | None = None
    is_json: bool = False


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

# What PyYAML, with which these frameworks read, takes for something other than a word. OmegaConf (Composer,
# Hydra) and jsonargparse (Lightning) also take `1e8` and `1.5e8` for numbers: it stays a word here, and
# `read_count` of `fsdp_migrate.words` reads it as one.
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
for _yes, _no in (("true", "false"), ("yes", "no"), ("on", "off")):
    for _change in (str.lower, str.title, str.upper):
        _WORDS[_change(_yes)] = True
        _WORDS[_change(_no)] = False
# Of YAML 1.1: `010` is eight, `1:30` is ninety, and a float has a dot, and a sign in its exponent.
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*(?::[0-5]?[0-9])*)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?\Z"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*\Z"
)
_NO_NUMBERS = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_LONGEST_INT = 4000  # digits; Python reads 4300, and none of them counts anything
REFERENCE = re.compile(r"\$\{|\{\{|\{%|<[A-Z][A-Z0-9_/]*>|\$[A-Za-z_0-9@*]|\$\(")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that is known only elsewhere: ``${...}``, ``{{...}}``, ``$VARIABLE``."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        # Mappings and lists that hold one are shown in messages.
        return repr(self.text)


def unknown_in(value: Any) -> Reference | None:
    """Return what is known only elsewhere of a value, or of a list's items."""
    items = value if isinstance(value, list) else [value]
    return next((each for each in items if isinstance(each, Reference)), None)


def holds_reference(value: object) -> bool:
    """Tell whether a value, or anything in it, is known only elsewhere.

    Example:
        >>> holds_reference({"min_num_params": Reference("${size}")}), holds_reference(["Block"])
        (True, False)
    """
    if isinstance(value, dict):
        return any(map(holds_reference, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_reference, value))
    return isinstance(value, Reference)


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

    In YAML it means what PyYAML reads, but for dates, which stay words: no setting of FSDP is one.

    Example:
        >>> scalar_value(Scalar(0, 3, "yes", "yes", False)), scalar_value(Scalar(0, 3, "yes", "'yes'", True))
        (True, 'yes')
        >>> type(scalar_value(Scalar(0, 7, "${size}", "${size}", False))).__name__
        'Reference'
    """
    if REFERENCE.search(node.value):
        return Reference(node.value)
    if node.quoted:
        return node.value
    if node.is_json:
        return json.loads(node.text)
    if node.value in _WORDS:
        return _WORDS[node.value]
    try:
        return _number(node.value)
    except ValueError:  # `0x_`: PyYAML fails there
        return node.value


def _number(text: str) -> Any:
    """Return the number that a word of YAML 1.1 is, or the word.

    Raises:
        ValueError: It looks like a number, and is none.
    """
    bare = text.replace("_", "").lower()
    if _NO_NUMBERS.match(text):
        # The one NaN: values are compared, and another one would be something else.
        return math.nan if bare == ".nan" else float(bare.replace(".", ""))
    is_whole = _INT.match(text) is not None and len(text) < _LONGEST_INT
    if not is_whole and not _FLOAT.match(text):
        return text
    sign, digits = (-1 if bare[0] == "-" else 1), bare.lstrip("+-")
    if ":" in digits:
        *above, last = digits.split(":")
        total = functools.reduce(lambda total, part: total * 60 + int(part), above, 0) * 60
        return sign * (total + (int(last) if is_whole else float(last)))
    if not is_whole:
        return sign * float(digits)
    base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits[0] == "0" else 10)
    return sign * int(digits[2:] if base in {2, 16} else digits, base)


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
