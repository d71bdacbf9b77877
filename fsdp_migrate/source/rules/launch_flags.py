"""Flags of ``accelerate launch`` for FSDP1 in the texts of a launcher that is written in Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "launch-flags"
CODES = ("FM320",)

_SAID = (
    "`accelerate launch` runs FSDP1 by these flags: `fsdp-migrate config --command '...'`, given the line, "
    "writes those of FSDP2, such as --fsdp_version 2."
)
_FLAG = re.compile(r"(?:^|[\s'\"])--use_fsdp\b")
_LAUNCHES = re.compile(r"accelerate['\",\s]+launch|accelerate\.commands\.launch")
_IS_NEW = "--fsdp_version"


def find(source: Source) -> Iterator[Found]:
    """Find the flag that asks for FSDP, once a statement."""
    if "--use_fsdp" not in source.code or not _LAUNCHES.search(source.code) or _IS_NEW in source.code:
        return
    seen: set[cst.CSTNode] = set()
    for kind in (cst.SimpleString, cst.FormattedStringText):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.SimpleString, cst.FormattedStringText))
            statement = source.index.statement(node)
            if not _FLAG.search(node.value) or statement in seen or _is_said(source, node):
                continue
            seen.add(statement)
            yield Found("FM320", node, _SAID, "commented")


def _is_said(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a text is a docstring, an option of the script's own, or what is asked for."""
    above = source.index.parents[node]
    if isinstance(above, (cst.Expr, cst.Comparison, cst.ComparisonTarget)):
        return True
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    func = call.func if isinstance(call, cst.Call) else None
    name = func.attr.value if isinstance(func, cst.Attribute) else ""
    return name in {"add_argument", "debug", "error", "info", "warning"}
