"""Reads YAML, also with template expressions in it, into nodes that know where they stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from fsdp_migrate.adapters.document.nodes import Alias, Entry, Mapping, Node, Scalar, Sequence
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_DEPTH = 100
MAX_NODES = 200_000
_TEMPLATE_LINE = re.compile(r"^[ \t]*(?:\{%.*?%\}[ \t]*|\{#.*?#\}[ \t]*)+$", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}")


def read_yaml(text: str) -> list[Node]:
    """Read every document of a YAML file.

    Template expressions (``{{ x }}``, ``${x}``) are values like others; lines that hold template statements
    alone (``{% if x %}``) are passed over.

    Raises:
        ConfigError: It is no YAML; the message has line and column.

    Example:
        >>> [node] = read_yaml("a: 1 # one")
        >>> node.entries[0].value.text
        '1'
    """
    masked = mask_templates(text)
    try:
        return list(_Composer(text, masked).documents())
    except MarkedYAMLError as error:
        raise ConfigError(_explain(text, error)) from error
    except (YAMLError, RecursionError, ValueError) as error:
        msg = f"It is no YAML that can be read: {' '.join(str(error).split())}"
        raise ConfigError(msg) from error


def _explain(text: str, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"Line {mark.line + 1}, column {mark.column + 1}" if mark else "It"
    what = " ".join(str(error.problem or error.context or "unreadable").split())
    lines = text.splitlines()
    shown = lines[mark.line].strip() if mark and mark.line < len(lines) else ""
    hint = ""
    if "{%" in shown or "{{" in shown:
        hint = " It is written in a template language: render the template, and convert what it makes."
    return f"{where} is no YAML: {what}.{hint}"


def mask_templates(text: str) -> str:
    """Return the text with template expressions replaced by plain words of the same length.

    Example:
        >>> mask_templates("a: {{ x }}")
        'a: TTTTTTT'
    """
    if "{{" in text or "{%" in text or "{#" in text:
        text = _TEMPLATE_LINE.sub(lambda match: "#" * len(match.group()), text)
        text = _TEMPLATE.sub(lambda match: "T" * len(match.group()), text)
    return _mask_interpolations(text)


def _mask_interpolations(text: str) -> str:
    """Replace ``${...}``, braces within braces included; a comma in it would end a value in a list."""
    parts = []
    done = 0
    while (start := text.find("${", done)) >= 0:
        end = _closing(text, start + 1)
        if end is None:
            parts.append(text[done : start + 2])
            done = start + 2
            continue
        parts.append(text[done:start])
        parts.append("R" * (end - start))
        done = end
    return "".join((*parts, text[done:]))


def _closing(text: str, index: int) -> int | None:
    depth = 0
    while index < len(text) and text[index] != "\n":
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        index += 1
        if depth == 0:
            return index
    return None


class _Composer:
    """Puts the parser's events together."""

    def __init__(self, text: str, masked: str) -> None:
        self.text = text
        self.masked = masked
        # Events and no values: they know their places in the text, and nothing is made of tags.
        self.events: Iterator[Any] = YAML(typ="safe", pure=True).parse(masked)
        self.anchors: dict[str, Node] = {}
        # How many nodes each node stands for, aliases written out; a node that is not closed yet has none.
        self.sizes: dict[int, int] = {}

    def documents(self) -> Iterator[Node]:
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                self.anchors = {}
                yield self._node(next(self.events), 0)

    def _node(self, event: Any, depth: int) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        if depth > MAX_DEPTH:
            msg = f"Line {event.start_mark.line + 1} is nested more than {MAX_DEPTH} levels deep."
            raise ConfigError(msg)
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                line, column = event.start_mark.line + 1, event.start_mark.column + 1
                msg = (
                    f"Line {line}, column {column} is no YAML: there is no anchor `&{event.anchor}` above it."
                )
                raise ConfigError(msg)
            alias = Alias(start, end, self.anchors[event.anchor])
            self._measure(alias, event, self.sizes.get(id(alias.target)))
            return alias
        node: Node
        if isinstance(event, ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, MappingStartEvent):
            node = Mapping(start, end, bool(event.flow_style), anchor=event.anchor)
        else:
            assert isinstance(event, SequenceStartEvent)
            node = Sequence(start, end, bool(event.flow_style), anchor=event.anchor)
        # Before it is filled: an alias within it is found, and can be refused.
        if event.anchor:
            self.anchors[event.anchor] = node
        if not isinstance(node, Scalar):
            self._fill(node, depth)
        self._measure(node, event, 1 + sum(self.sizes[id(child)] for child in _children(node)))
        return node

    def _measure(self, node: Node, event: Any, size: int | None) -> None:
        line = event.start_mark.line + 1
        if size is None:
            msg = f"Line {line}: `*{event.anchor}` stands within what it stands for."
            raise ConfigError(msg)
        if size > MAX_NODES:
            msg = f"Line {line}: its aliases stand for more than {MAX_NODES} values, which no config has."
            raise ConfigError(msg)
        self.sizes[id(node)] = size

    def _scalar(self, event: Any) -> Scalar:
        start, end = event.start_mark.index, event.end_mark.index
        found, seen = self.text[start:end], self.masked[start:end]
        value = event.value
        if found != seen:
            # A template stands in it: what was parsed is the mask.
            value = found[1:-1] if event.style in {"'", '"'} else found
        return Scalar(start, end, str(value), found, event.style is not None, event.anchor)

    def _fill(self, node: Mapping | Sequence, depth: int) -> None:
        for event in self.events:
            if isinstance(event, (MappingEndEvent, SequenceEndEvent)):
                if node.flow:
                    node.end = event.end_mark.index
                else:
                    node.end = _last_end(node)
                return
            child = self._node(event, depth + 1)
            if isinstance(node, Mapping):
                node.entries.append(Entry(child, self._node(next(self.events), depth + 1)))
            else:
                node.items.append(child)


def _children(node: Node) -> list[Node]:
    if isinstance(node, Mapping):
        return [part for entry in node.entries for part in (entry.key, entry.value)]
    return node.items if isinstance(node, Sequence) else []


def _last_end(node: Mapping | Sequence) -> int:
    """Return where the last thing in a block ends; the parser says where the next thing begins."""
    if isinstance(node, Mapping):
        return max((max(e.key.end, e.value.end) for e in node.entries), default=node.end)
    return max((item.end for item in node.items), default=node.end)
