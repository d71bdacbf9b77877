"""Parameters of a project's functions that are given a framework's objects: ``wrap(fabric, net)``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.named_objects import last_part
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.python.named_objects import NamedObjects

    Calls = dict[str, list[tuple[Module, ast.Call]]]


_ROUNDS: Final = 3
"""From function to function."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def objects_given(
    project: Project, unknown: Mapping[Path, frozenset[str]], kind: NamedObjects
) -> dict[Path, set[str]]:
    """Return by file the names that are parameters, or hold them, to which calls give such an object.

    Args:
        project: The project.
        unknown: By file the names that are asked to shard, and of which nothing else tells what they are.
        kind: The framework's class.
    """
    found: dict[Path, set[str]] = {}
    if not any(kind.kind in text for text in project.texts.values()):
        return found
    taking = {path: [*_taking(project, path, names)] for path, names in unknown.items()}
    functions = [function for each in taking.values() for function, _, _ in each]
    lasts = {last_part((each.owner or each).name) for each in functions if each.node.name == "__init__"}
    calls = _calls_of(project, lasts | {each.node.name for each in functions} - {"__init__"})

    def is_one(node: ast.expr, path: Path) -> bool:
        return _is_one(node, project.texts[path], kind, found.get(path, set()))

    for _ in range(_ROUNDS):
        new = {
            (path, name)
            for path, functions in taking.items()
            for function, parameter, name in functions
            if name not in found.get(path, ()) and _is_given(project, calls, function, parameter, is_one)
        }
        for path, name in new:
            found.setdefault(path, set()).add(name)
        if not new:
            break
    return found


def _taking(project: Project, path: Path, names: frozenset[str]) -> Iterator[tuple[Definition, str, str]]:
    """Yield the functions of a file that have one of some names for a parameter, or keep one as such."""
    module = project.module(path)
    for each in module.definitions.values() if module is not None else ():
        node = each.node
        if not isinstance(node, _FUNCTIONS):
            continue
        for arg in parameters_of(node):
            if arg.arg in names:
                yield each, arg.arg, arg.arg
        for assign in walked(node) if node.name == "__init__" else ():
            value = assign.value if isinstance(assign, ast.Assign) else None
            for target in assign.targets if isinstance(assign, ast.Assign) else ():
                kept = last_part(dotted(target) or "")
                if isinstance(value, ast.Name) and kept in names and dotted(target) == f"self.{kept}":
                    yield each, value.id, kept


def _is_given(
    project: Project,
    calls: Calls,
    function: Definition,
    parameter: str,
    is_one: Callable[[ast.expr, Path], bool],
) -> bool:
    """Tell whether a call gives a function's parameter such an object."""
    owner = function.owner if function.node.name == "__init__" else None
    wanted = owner or function
    is_method = function.owner is not None and owner is None
    for module, node in calls.get(last_part(wanted.name), ()):
        named = project.named(dotted(node.func) or "", Place(module, ""))
        if named is wanted or (is_method and isinstance(node.func, ast.Attribute)):
            given = given_by(function, parameter, node)
            if given is not None and is_one(given, module.path):
                return True
    return False


def _calls_of(project: Project, names: set[str]) -> Calls:
    """Return the calls of what has one of some names; each file is gone through once."""
    found: Calls = {}
    for module in project.parsed(project.holding(names)):
        for node in walked(module.tree):
            if isinstance(node, ast.Call):
                func = node.func
                name = func.attr if isinstance(func, ast.Attribute) else dotted(func) or ""
                if name in names:
                    found.setdefault(name, []).append((module, node))
    return found


def _is_one(node: ast.expr, text: str, kind: NamedObjects, known: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return last_part(dotted(node.func) or "") == kind.kind
    name = dotted(node)
    return name is not None and (last_part(name) in known or kind.is_one(name, text))
