"""Where Accelerate's plugin is told to ignore modules, which its FSDP2 shards where rank 0 loads for all."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.files import SETTINGS, find_sources
from fsdp_migrate.source.loaded_by_rank_0 import loads_so, parsed, read, says_so


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator


_NAME: Final = "ignored_modules"


def find_ignored(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return where ``fsdp_plugin.ignored_modules`` is set, in a project that lets rank 0 load for all.

    Args:
        paths: Files and folders.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_ignored(["fsdp_migrate/source"])
        []
    """
    found = list(paths)
    sources = dict(read(find_sources(found)))
    setting = {path: lines for path, code in sources.items() if (lines := list(_lines(code)))}
    if not setting:
        return []
    if not says_so(sources.values()) and not loads_so(
        text for _, text in read(find_sources(found, SETTINGS))
    ):
        return []
    return [f"{path}:{line}" for path, lines in setting.items() for line in lines]


def _lines(code: str) -> Iterator[int]:
    """Yield the lines at which the attribute of a plugin is given something."""
    if _NAME not in code or "plugin" not in code:
        return
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Assign):
            if any(_is_plugins(target) for target in node.targets) and not _is_none(node.value):
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and len(node.args) == 3:
            owner, name, value = node.args
            if _is_plugin(owner) and ast.unparse(name).strip("'\"") == _NAME and not _is_none(value):
                yield node.lineno


def _is_plugins(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == _NAME and _is_plugin(node.value)


def _is_plugin(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("plugin")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
