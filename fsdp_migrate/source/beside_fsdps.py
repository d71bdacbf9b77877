"""Classes of other engines beside one for FSDP, as plugins have them: what they are given is none of FSDP's.

``GeminiCheckpointIO`` beside ``TorchFSDPCheckpointIO``, both made from ``CheckpointIO``, whose methods each
has of its own: what is known of the base's models and optimizers holds in FSDP's class, and not in that.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Definition, is_a_test, last_name
from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_FSDP: Final = re.compile(r"fsdp|fully_?shard", re.IGNORECASE)
_NAMED: Final = re.compile(rf"^[ \t]*class[ \t]+\w*(?:{_FSDP.pattern})", re.IGNORECASE | re.MULTILINE)
# What an engine or a wrapper that is none of FSDP1's is called by.
_OTHERS: Final = re.compile(r"ddp|zero|gemini|deepspeed|parallel|megatron|horovod|xla", re.IGNORECASE)
# What functions are called that may shard a model themselves: `return wrap(model)`.
_MAY_WRAP: Final = re.compile(r"(?:^|_)(?:wrap|prepare|shard)(?:_model|_module)?$|parallelize", re.IGNORECASE)
_DEEPEST: Final = 4


def with_classes_beside(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files of a project which classes of theirs have nothing to do with FSDP, by their lines."""
    told = dict(links)
    for each in _classes_beside(project):
        known, path = told.get(each.module.path, NOTHING), each.module.path
        lines = (each.node.lineno, each.node.end_lineno or each.node.lineno)
        told[path] = replace(known, unsharded=known.unsharded | {lines})
    return told


def _classes_beside(project: Project) -> list[Definition]:
    named = _classes(project, (path for path, text in project.texts.items() if _NAMED.search(text)))
    found: dict[str, Definition] = {}
    for own in (each for each in named if _FSDP.search(each.name)):
        line = _line(project, own)
        for root in (each for each in line[1:] if not _speaks(each)):
            for each in _below(project, root):
                if each.key not in {above.key for above in line} and _is_another(project, each, own, root):
                    found[each.key] = each
    return list(found.values())


def _is_another(project: Project, each: Definition, own: Definition, root: Definition) -> bool:
    """Tell whether a class is of another engine, with methods of its own for what FSDP's class does."""
    line = _line(project, each)
    above = {one.key for one in _line(project, root)}
    between = [one for one in line if one.key not in above]
    if own.key in {one.key for one in line} or any(_speaks(one) or _may_shard(one) for one in between):
        return False
    if any(_speaks(below) for below in _below(project, each)):
        return False
    is_named = any(_OTHERS.search(one.name) for one in between)
    return is_named and not _methods(each).isdisjoint(_methods(own))


def _speaks(each: Definition) -> bool:
    """Tell whether a class's name or code speaks of FSDP."""
    return _FSDP.search(ast.unparse(each.node)) is not None


def _may_shard(each: Definition) -> bool:
    calls = (node.func for node in ast.walk(each.node) if isinstance(node, ast.Call))
    return any(_MAY_WRAP.search(last_name(func)) for func in calls)


def _methods(each: Definition) -> set[str]:
    """Return the names of a class's own methods, those that every class may have left out."""
    body = each.node.body
    names = {line.name for line in body if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return {name for name in names if not name.startswith("__")}


def _line(project: Project, owner: Definition, depth: int = 0) -> list[Definition]:
    """Return a class, and those of the project that it is made from."""
    bases = project.bases(owner) if depth < _DEEPEST else []
    return [owner, *(above for base in bases for above in _line(project, base, depth + 1))]


def _below(project: Project, root: Definition) -> list[Definition]:
    """Return the classes of the project that are made from one, by others too."""
    known, found = {root.key}, list[Definition]()
    names = {root.name.rpartition(".")[2]}
    for _ in range(_DEEPEST):
        latest = [
            each
            for each in _classes(project, project.holding(names))
            if each.key not in known and any(base.key in known for base in project.bases(each))
        ]
        if not latest:
            break
        found += latest
        known |= {each.key for each in latest}
        names = {each.name.rpartition(".")[2] for each in latest}
    return found


def _classes(project: Project, paths: Iterable[Path]) -> list[Definition]:
    modules = project.parsed(path for path in paths if not is_a_test(path))
    every = (each for module in modules for each in module.definitions.values())
    return [each for each in every if isinstance(each.node, ast.ClassDef)]
