"""Configs of Accelerate's for FSDP1 that a source writes itself: in a text, or in a dict."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.starred import parsed_again
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsdp_migrate.source.python.text import Source


NAME = "config-texts"
CODES = ("FM320",)

_MEANT = (
    "this is a config of Accelerate's for FSDP1, which whoever is launched by it runs from then on, too. {}"
    "`fsdp-migrate config FILE`, of a file with this text, says what else becomes of it."
)
_CHANGES = "Take out {}, and write {}. "
_ASKS = re.compile(r"^[ \t]*distributed_type[ \t]*:[ \t]*['\"]?FSDP\b", re.MULTILINE)
_SETTINGS = re.compile(r"^[ \t]*fsdp_config[ \t]*:", re.MULTILINE)
_IS_NEW = re.compile(r"^[ \t]*fsdp_version[ \t]*:[ \t]*['\"]?2", re.MULTILINE)
_UNKNOWN = "1"
"""What stands in a text for a value that is known when it runs."""
_OPEN = "${value}"
"""What stands in a dict for one: configs have it for what is put in later."""
_STARRED = "**"


def find(source: Source) -> Iterator[Found]:
    """Find them where they stand, in sources that speak of such a config."""
    if "distributed_type" not in source.code or "fsdp_config" not in source.code:
        return
    for kind in (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, cst.BaseExpression)
            if isinstance(source.index.parents[node], (cst.ConcatenatedString, cst.Expr)):
                continue  # a part of one, or a docstring
            if _is_one(text := _written(node)):
                yield Found("FM320", node, _said(text), "commented")
    for node in source.index.by_kind.get(cst.Dict, ()):
        if (text := _of_dict(source, cst.ensure_type(node, cst.Dict))) and _is_one(text):
            yield Found("FM320", node, _said(text), "commented")


def _is_one(text: str) -> bool:
    return bool(_ASKS.search(text) and _SETTINGS.search(text)) and _IS_NEW.search(text) is None


def _written(node: cst.BaseExpression) -> str:
    """Return a text as it is when it runs, as far as it is known."""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else ""
    if isinstance(node, cst.ConcatenatedString):
        return _written(node.left) + _written(node.right)
    parts = node.parts if isinstance(node, cst.FormattedString) else ()
    return "".join(each.value if isinstance(each, cst.FormattedStringText) else _UNKNOWN for each in parts)


def _of_dict(source: Source, node: cst.Dict) -> str:
    """Return a dict as the lines of a config: ``{"distributed_type": "FSDP", "fsdp_config": {...}}``."""
    parsed = parsed_again(source.module, node) if "distributed_type" in text_of(node) else None
    value = _value(parsed) if parsed is not None else None
    inner = value.get("fsdp_config") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(inner, dict):
        return ""
    # What a star brings, or a name, may ask for FSDP2.
    if _STARRED in inner or inner.get("fsdp_version") == _OPEN:
        return ""
    outer = {key: each for key, each in value.items() if key not in {"fsdp_config", _STARRED}}
    return "\n".join([*_lines(outer, ""), "fsdp_config:", *_lines(inner, "  ")])


def _value(node: ast.expr) -> object:
    """Return what is written for a value, or what stands for one that is known when it runs."""
    if isinstance(node, ast.IfExp):  # `"FSDP" if sharded else "MULTI_GPU"`
        return "FSDP" if "FSDP" in (_value(node.body), _value(node.orelse)) else _OPEN
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        keyed = [(key, each) for key, each in pairs if key is None or isinstance(key, ast.Constant)]
        return {_STARRED if key is None else _value(key): _value(each) for key, each in keyed}
    try:
        return ast.literal_eval(node)
    except (SyntaxError, TypeError, ValueError):
        return _OPEN


def _lines(values: Mapping[str, object], indent: str) -> Iterator[str]:
    # What no config can hold, such as a set, is shown as it is written.
    return (f"{indent}{key}: {json.dumps(each, default=repr)}" for key, each in values.items())


def _said(text: str) -> str:
    """Return what is said of a config, with the lines that change."""
    from fsdp_migrate.adapters.conversion.text import convert_text

    try:
        after = convert_text(text, framework="accelerate").text
    except FSDPMigrateError:
        return _MEANT.format("")
    before, new = ([line.strip() for line in each.splitlines() if line.strip()] for each in (text, after))
    gone = [f"`{line}`" for line in before if line not in new]
    added = [f"`{line}`" for line in new if line not in before]
    return _MEANT.format(_CHANGES.format(", ".join(gone) or "nothing", ", ".join(added)))
