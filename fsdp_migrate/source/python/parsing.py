"""Text into a syntax tree, and what is wrong with text that is none."""

from __future__ import annotations

import ast
import contextlib
import re
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.python.noted_assigns import with_plain_assigns
from fsdp_migrate.source.python.walked import children_of


if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 300
"""Sources that are nested more deeply are made by programs, or to do harm: LibCST's parser dies of them."""

_MAX_LINE = 20_000
_OPENING = "([{"


def parse_module(code: str, path: str) -> cst.Module:
    """Parse a source of any Python from 3.0 on; nothing is run.

    Raises:
        SourceError: It is no Python, with the line, the column and the reason; or it is nested too deeply.

    Example:
        >>> parse_module("print 'x'", "old.py")
        Traceback (most recent call last):
        ...
        fsdp_migrate.errors.SourceError: old.py:1:1: no Python 3: Missing parentheses in call to 'print'...
    """
    reason = _refuse_what_kills(code, path)
    try:
        return with_plain_assigns(cst.parse_module(code))
    except cst.ParserSyntaxError as error:
        reason = reason or f"{path}:{error.raw_line}:{error.raw_column + 1}: no Python 3"
        raise SourceError(f"{reason}. It is left as it is.", path=path) from None
    except RecursionError:
        raise too_deep(path) from None


def too_deep(path: str) -> SourceError:
    """Return the error for a source that is nested too deeply."""
    msg = f"{path}: expressions or blocks are nested too deeply to be read. It is left as it is."
    return SourceError(msg, path=path)


@contextlib.contextmanager
def told(path: str, failure: str | None = None) -> Iterator[None]:
    """Say of whatever fails in which file it did: a fault of ours is no reason to leave out the others.

    Args:
        path: The file.
        failure: How this package failed on it before, if it did: that is raised again.

    Raises:
        SourceError: Something failed, or had.
    """
    if failure is not None:
        raise SourceError(failure, path=path)
    try:
        yield
    except SourceError:
        raise
    except RecursionError:
        raise too_deep(path) from None
    except Exception as error:
        raise failed(path, error) from error


def failed(path: str, error: Exception) -> SourceError:
    """Return the error for a source that this package cannot read, through a fault of its own."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}: {error}"
    msg = (
        f"{path}: left as it is, and not searched: {what}. This is a bug in fsdp-migrate. Report it to its "
        "maintainers with this file."
    )
    return SourceError(msg, path=path)


def _refuse_what_kills(code: str, path: str) -> str | None:
    """Raise for sources that LibCST's parser dies of; return what CPython's parser has to say, if anything.

    What CPython refuses may still be right: in a newer Python than this one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are none of our business
            tree = ast.parse(code)
    except SyntaxError as error:
        if "nested" in str(error.msg) or "too many" in str(error.msg) or _looks_deep(code):
            raise too_deep(path) from None
        return f"{path}:{error.lineno or 1}:{error.offset or 1}: no Python 3: {error.msg}"
    except (RecursionError, MemoryError):
        raise too_deep(path) from None
    except ValueError as error:  # such as null characters
        raise SourceError(f"{path}: no Python 3: {error}. It is left as it is.", path=path) from None
    if _is_deep(tree):
        raise too_deep(path)
    return None


def _is_deep(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in children_of(node)]
        # `a and b and c` is flat for CPython, and nested for LibCST.
        if any(isinstance(node, ast.BoolOp) and len(node.values) > MAX_DEPTH for node in level):
            return True
        if not level:
            return False
    return True


def _looks_deep(code: str) -> bool:
    # Of what CPython does not parse there is no tree to measure: brackets are counted.
    depth = deepest = 0
    for sign in re.findall(r"[][(){}]", code):
        depth += 1 if sign in _OPENING else -1
        deepest = max(deepest, depth)
    long = max(map(len, code.splitlines()), default=0) > _MAX_LINE
    return long or deepest > MAX_DEPTH or code.count("elif") > MAX_DEPTH
