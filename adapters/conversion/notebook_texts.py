"""Texts of a notebook's Python in its lines for a shell: ``!accelerate launch {flags} train.py``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_MAGIC = re.compile(r"^([ \t]*)(?:[%!?].*|\w+[ \t]*=[ \t]*[%!].*|.*\?)$", re.MULTILINE)
_PUT_IN = re.compile(r"(?<![{$\\])\{(\w+)\}(?!\})|\$\{?(\w+)\}?")


def texts_in(code: str, known: Mapping[str, str]) -> dict[str, str]:
    r"""Return the texts that names have below a cell's Python, with those that they had above.

    Example:
        >>> texts_in("a = '--use_fsdp'\nb = f'{a} -x'\n!ls {b}", {})
        {'a': '--use_fsdp', 'b': '--use_fsdp -x'}
    """
    found = dict(known)
    try:
        tree = parse_any(_MAGIC.sub(r"\1pass", code))
    except (SyntaxError, ValueError, RecursionError):
        return found
    for statement in tree.body:
        text = _text(_value(statement), found)
        # What a branch or a loop gives a name is known when it runs.
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.pop(node.id, None)
        if text is not None:
            found.update((each.id, text) for each in _targets(statement) if isinstance(each, ast.Name))
    return found


def put_together(command: str, texts: Mapping[str, str]) -> str:
    """Return a line as the shell gets it, as far as the texts are known.

    Example:
        >>> put_together("torchrun t.py {flags} $HOME {{x}}", {"flags": "--fsdp full_shard"})
        'torchrun t.py --fsdp full_shard $HOME {{x}}'
    """
    return _PUT_IN.sub(lambda match: texts.get(match[1] or match[2], match[0]), command)


def put_in(command: str) -> Iterator[tuple[str, int]]:
    """Yield the names that IPython looks up for a line, with their places.

    Example:
        >>> list(put_in("ls {a} $b"))
        [('a', 3), ('b', 7)]
    """
    yield from ((match[1] or match[2], match.start()) for match in _PUT_IN.finditer(command))


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def _value(node: ast.stmt) -> ast.expr | None:
    """Return what a name is set to: of ``flags += more`` it is ``flags + more``."""
    if isinstance(node, ast.AugAssign):
        return ast.BinOp(node.target, node.op, node.value)
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def _text(value: ast.expr | None, known: Mapping[str, str]) -> str | None:
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    if isinstance(value, ast.Name):
        return known.get(value.id)
    if isinstance(value, ast.FormattedValue):
        return _text(value.value, known) if value.format_spec is None else None
    parts = value.values if isinstance(value, ast.JoinedStr) else []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [value.left, value.right]
    texts = [_text(part, known) for part in parts]
    return "".join(text for text in texts if text is not None) if parts and None not in texts else None
