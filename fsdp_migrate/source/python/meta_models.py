"""Models that some ranks alone make on the meta device, to be filled by what rank 0 sends."""

from __future__ import annotations

import ast
import re
from typing import Final

from fsdp_migrate.newer_syntax import parse_any


ON_META: Final = re.compile(r"\binit_empty_weights\(|\binit_on_device\(|['\"]meta['\"]")
"""What makes models on the meta device."""
_OF_ACCELERATE: Final = re.compile(
    r"\binit_empty_weights\([^()]*\)|\binit_on_device\([^()]*(?:\([^()]*\)[^()]*)?\)"
)
_BUFFERS_TOO: Final = re.compile(r"include_buffers\s*=\s*(?!False)")
_BY_RANK: Final = re.compile(r"rank|master|is_main|main_process|\bis_(?:first|zero)|\bfirst\b", re.IGNORECASE)


def made_on_meta(text: str) -> str:
    """Return what a source makes on the meta device where a condition names a rank, or nothing.

    Accelerate's contexts leave buffers where they are, which no state dict may have to fill them.

    Example:
        >>> made_on_meta("with nullcontext() if rank == 0 else init_empty_weights(): make()")
        'parameters'
        >>> made_on_meta("with nullcontext() if rank == 0 else torch.device('meta'): make()")
        'buffers'
        >>> made_on_meta("with init_empty_weights(): make()")
        ''
    """
    if ON_META.search(text) is None:
        return ""
    try:
        nodes = list(ast.walk(parse_any(text)))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    choices = [each for each in nodes if isinstance(each, (ast.If, ast.IfExp)) and _is_by_rank(each)]
    if any(_has_buffers(part) for each in choices for part in (each.body, each.orelse)):
        return "buffers"
    return "parameters" if choices else ""


def _has_buffers(branch: list[ast.stmt] | ast.expr) -> bool:
    """Tell whether a branch puts buffers on the meta device too, as torch's own contexts do."""
    for text in _texts(branch):
        found = _OF_ACCELERATE.findall(text)
        if any(map(_BUFFERS_TOO.search, found)) or ON_META.search(_OF_ACCELERATE.sub("", text)):
            return True
    return False


def _is_by_rank(node: ast.If | ast.IfExp) -> bool:
    """Tell whether one branch alone of a condition on the rank has the meta device."""
    if _BY_RANK.search(ast.unparse(node.test)) is None:
        return False
    return _names_meta(node.body) is not _names_meta(node.orelse)


def _names_meta(branch: list[ast.stmt] | ast.expr) -> bool:
    return any(map(ON_META.search, _texts(branch)))


def _texts(branch: list[ast.stmt] | ast.expr) -> list[str]:
    parts: list[ast.stmt] | list[ast.expr] = branch if isinstance(branch, list) else [branch]
    return [ast.unparse(each) for each in parts]
