"""Accelerate's variables that one file of a project sets for another, which runs in the same process."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import dotted, is_a_test
from fsdp_migrate.source.python.environment import joined
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.reach import imports_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_SETS: Final = re.compile(r"\b(?:environ|putenv)\b")
_NAMES: Final = re.compile(r"\b(?:ACCELERATE|FSDP)_[A-Z_]+\Z")
_WORDS: Final = ("FSDP_", "ACCELERATE_")
# What is given settings of FSDP's: the Trainer's arguments, a dict for them, and Accelerate's plugin.
_READS: Final = re.compile(r"\bfsdp\b|\bFullyShardedDataParallelPlugin\b")
_FARTHEST: Final = 4


def with_variables(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files with settings of FSDP's which variables others set, that a run of theirs imports."""
    setting = {path: its for path in project.texts if (its := [*_set_in(project, path)])}
    if not setting:
        return links
    reading = [path for path, text in project.texts.items() if _READS.search(text)]
    if not any(path not in setting or len(setting) > 1 for path in reading):
        return links
    loaded = _loaded_together(project)
    told = dict(links)
    for path in reading:
        beside = {each for run in loaded.values() if path in run for each in run} - {path}
        found = joined(each for other in setting if other in beside for each in setting[other])
        if found:
            told[path] = replace(told.get(path, NOTHING), environment=found)
    return told


def _loaded_together(project: Project) -> Mapping[Path, set[Path]]:
    """Return the files that each file runs with: itself, and what its imports lead to."""
    imports = {path: {*imports_of(project, path)} for path in project.texts if not is_a_test(path)}
    loaded = {}
    for path in imports:
        found = latest = {path}
        for _ in range(_FARTHEST):
            latest = {each for one in latest for each in imports.get(one, ()) if each in imports} - found
            found = found | latest
        loaded[path] = found
    return loaded


def _set_in(project: Project, path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield Accelerate's variables that a file sets for its own process, with what they are set to."""
    text = project.texts[path]
    if is_a_test(path) or not any(word in text for word in _WORDS) or _SETS.search(text) is None:
        return
    module = project.module(path)
    for node in walked(module.tree) if module is not None else ():
        for name, value in _sets(node):
            known = name.value if isinstance(name, ast.Constant) else name
            if isinstance(known, str) and _NAMES.match(known):
                text_known = value.value if isinstance(value, ast.Constant) else None
                yield known, text_known if isinstance(text_known, str) else None


def _sets(node: ast.AST) -> Iterator[tuple[ast.expr | str | None, ast.expr]]:
    """Yield what a statement or a call sets in the environment: names, and their values."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and (dotted(target.value) or "").endswith("environ"):
                yield target.slice, node.value
    func = dotted(node.func) or "" if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or not func:
        return
    if func.endswith(("environ.setdefault", "putenv")) and len(node.args) == 2:
        yield node.args[0], node.args[1]
    elif func.endswith("environ.update"):
        yield from ((each.arg, each.value) for each in node.keywords)
        given = node.args[0] if node.args else None
        yield from zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ()
