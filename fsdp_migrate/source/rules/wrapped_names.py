"""``_fsdp_wrapped_module`` stood in the names of FSDP1's modules, and stands in none of FSDP2's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "wrapped-names"
CODES = ("FM316",)

_NAMES = re.compile(r"_fsdp_wrapped_module|_fpw_module|_flat_param\b")
_CLEAN = "stays: names are clean already, so there is nothing to take out"
_MEANT = "FSDP2 puts nothing into names: no name has this part any more."
# Calls that take a part out of a name where it is, and leave the name alone where it is not.
_HARMLESS = frozenset({"lstrip", "removeprefix", "removesuffix", "replace", "split", "sub", "strip"})


def find(source: Source) -> Iterator[Found]:
    """Find strings with the parts that FSDP1 put into names."""
    for kind in (cst.SimpleString, cst.FormattedStringText):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.SimpleString, cst.FormattedStringText))
            if not _NAMES.search(node.value) or _is_docstring(source, node):
                continue
            if _is_taken_out(source, node):
                yield Found("FM316", node, _CLEAN, "kept")
            else:
                yield Found("FM316", node, _MEANT, "commented")


def _is_docstring(source: Source, node: cst.CSTNode) -> bool:
    return isinstance(source.index.parents[node], cst.Expr)


def _is_taken_out(source: Source, node: cst.CSTNode) -> bool:
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call):
            func = above.func
            name = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
            return name in _HARMLESS
        if isinstance(above, cst.BaseStatement):
            return False
    return False
