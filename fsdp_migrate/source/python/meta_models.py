"""Models that some ranks alone make on the meta device, to be filled by what rank 0 sends."""

from __future__ import annotations

import ast
import re
from typing import Final

from fsdp_migrate.newer_syntax import parse_any


_META: Final = re.compile(r"\binit_empty_weights\(|\binit_on_device\(|['\"]meta['\"]")
_BY_RANK: Final = re.compile(r"rank|master|is_main|main_process|\bis_(?:first|zero)|\bfirst\b", re.IGNORECASE)


def are_made_on_meta(text: str) -> bool:
    """Tell whether a source makes something on the meta device where a condition names a rank.

    Example:
        >>> are_made_on_meta("with nullcontext() if rank == 0 else init_empty_weights(): make()")
        True
        >>> are_made_on_meta("with init_empty_weights(): make()")
        False
    """
    if _META.search(text) is None:
        return False
    try:
        nodes = list(ast.walk(parse_any(text)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(_is_by_rank(node) for node in nodes if isinstance(node, (ast.If, ast.IfExp)))


def _is_by_rank(node: ast.If | ast.IfExp) -> bool:
    """Tell whether one branch alone of a condition on the rank has the meta device."""
    if _BY_RANK.search(ast.unparse(node.test)) is None:
        return False
    return _names_meta(node.body) is not _names_meta(node.orelse)


def _names_meta(branch: list[ast.stmt] | ast.expr) -> bool:
    parts: list[ast.stmt] | list[ast.expr] = branch if isinstance(branch, list) else [branch]
    return any(_META.search(ast.unparse(each)) for each in parts)
