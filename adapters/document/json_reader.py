"""Reads JSON into nodes that know where they stand. Python's own reader says first whether it is JSON."""

from __future__ import annotations

import json
import re

from fsdp_migrate.adapters.document.nodes import Entry, Mapping, Node, Scalar, Sequence
from fsdp_migrate.errors import ConfigError


_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[^\s,\]}]+")
MAX_DEPTH = 100


def read_json(text: str) -> Node:
    """Read one JSON document.

    Raises:
        ConfigError: It is no JSON; the message has line and column.

    Example:
        >>> node = read_json('{"a": [1, true]}')
        >>> node.entries[0].key.value, node.entries[0].value.items[1].value
        ('a', 'true')
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        msg = f"Line {error.lineno}, column {error.colno} is no JSON: {error.msg}."
        raise ConfigError(msg) from error
    except (RecursionError, ValueError) as error:
        msg = f"It is no JSON that can be read: {error}."
        raise ConfigError(msg) from error
    return _Reader(text).value(_skip(text, 0), 0)


def _skip(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    return match.end() if match else index


class _Reader:
    """Walks over text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self.text = text

    def value(self, index: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            msg = f"It is nested more than {MAX_DEPTH} levels deep, which no config is."
            raise ConfigError(msg)
        if self.text[index] == "{":
            return self._mapping(index, depth)
        if self.text[index] == "[":
            return self._sequence(index, depth)
        return self._scalar(index)

    def _scalar(self, index: int) -> Scalar:
        quoted = self.text[index] == '"'
        match = (_STRING if quoted else _WORD).match(self.text, index)
        assert match is not None
        found = match.group()
        value = json.loads(found) if quoted else found
        return Scalar(index, match.end(), value, found, quoted, is_json=True)

    def _mapping(self, index: int, depth: int) -> Mapping:
        node = Mapping(index, index, flow=True)
        index = _skip(self.text, index + 1)
        while self.text[index] != "}":
            key = self._scalar(index)
            index = _skip(self.text, _skip(self.text, key.end) + 1)
            value = self.value(index, depth + 1)
            node.entries.append(Entry(key, value))
            index = self._next(value.end)
        node.end = index + 1
        return node

    def _sequence(self, index: int, depth: int) -> Sequence:
        node = Sequence(index, index, flow=True)
        index = _skip(self.text, index + 1)
        while self.text[index] != "]":
            item = self.value(index, depth + 1)
            node.items.append(item)
            index = self._next(item.end)
        node.end = index + 1
        return node

    def _next(self, index: int) -> int:
        """Return where the next item or the closing bracket stands."""
        index = _skip(self.text, index)
        return _skip(self.text, index + 1) if self.text[index] == "," else index
