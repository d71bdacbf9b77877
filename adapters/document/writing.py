"""Plain values as they stand in YAML and JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from fsdp_migrate.adapters.document.nodes import Reference, Scalar, scalar_value


_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./ +-]*(?<! )\Z")


def scalar_text(value: Any, *, json_style: bool, like: Scalar | None = None) -> str:
    """Return one value as it stands in a file; words are quoted as ``like`` is.

    Example:
        >>> scalar_text(True, json_style=False), scalar_text("yes", json_style=False)
        ('true', '"yes"')
        >>> scalar_text("A", json_style=False, like=Scalar(0, 3, "B", "'B'", True))
        "'A'"
    """
    if isinstance(value, (bool, int, float)) or value is None:
        return json.dumps(value)
    text = str(value)
    if json_style:
        return json.dumps(text, ensure_ascii=False)
    if like is not None and like.text[:1] in {"'", '"'}:
        return (
            f"'{text}'" if like.text[0] == "'" and "'" not in text else json.dumps(text, ensure_ascii=False)
        )
    plain = isinstance(value, Reference) or text == "???" or text.startswith("${")
    if not plain and _PLAIN.match(text):
        # Read once more: `yes`, `null` or `12` without quotes would be something else.
        plain = scalar_value(Scalar(0, len(text), text, text, quoted=False)) == text
    # A text of JSON is one of YAML, too.
    return text if plain else json.dumps(text, ensure_ascii=False)


def flow_text(value: Any, *, json_style: bool) -> str:
    """Return a value as it stands in one line.

    Example:
        >>> flow_text({"a": [True, None]}, json_style=True), flow_text({"a": "b c"}, json_style=False)
        ('{"a": [true, null]}', '{a: b c}')
    """
    if isinstance(value, dict):
        entries = (
            f"{key_word(str(name), like=None, json_style=json_style)}: "
            f"{flow_text(inner, json_style=json_style)}"
            for name, inner in value.items()
        )
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(flow_text(item, json_style=json_style) for item in value)}]"
    text = scalar_text(value, json_style=json_style)
    # Within braces these characters mean something.
    return json.dumps(str(value), ensure_ascii=False) if text[:2] in {"??", "${", "{{"} else text


def block_lines(key: str, value: Any, indent: str) -> list[str]:
    """Return an entry as lines of YAML.

    Example:
        >>> block_lines("a", {"b": [1], "c": True}, "")
        ['a:', '  b: [1]', '  c: true']
    """
    word = key_word(key, like=None, json_style=False)
    if isinstance(value, dict) and value:
        lines = [f"{indent}{word}:"]
        for name, inner in value.items():
            lines += block_lines(name, inner, indent + "  ")
        return lines
    is_nested = isinstance(value, (dict, list, tuple))
    text = (flow_text if is_nested else scalar_text)(value, json_style=False)
    return [f"{indent}{word}: {text}"]


def key_word(key: str, *, like: Scalar | None, json_style: bool) -> str:
    """Return a key as it stands in a file.

    Example:
        >>> key_word("fsdp", like=None, json_style=True), key_word("fsdp", like=None, json_style=False)
        ('"fsdp"', 'fsdp')
    """
    return scalar_text(key, json_style=json_style, like=like)
