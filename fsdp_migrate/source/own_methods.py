"""Methods of a project's classes that run in others of them: ``self.probe()`` in a framework's hook.

A class has those of the classes that it derives from, in whatever file these are, and calls them in the same
way.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.reached_methods import reached
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fsdp_migrate.source.project import Definition, Project


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEPEST = 5


def run_in_hooks(
    project: Project,
    owners: Iterable[Definition],
    is_hook: Callable[[str], object],
    is_elsewhere: Callable[[str], object],
) -> dict[str, frozenset[str]]:
    """Return the methods that hooks of some classes run, by the key of the class that has them.

    ``is_hook`` and ``is_elsewhere`` say which methods a framework runs by itself, in time and at other times.
    """
    found: dict[str, frozenset[str]] = {}
    for owner in owners:
        family = dict.fromkeys(_family(project, owner))
        own = {each: _methods(each) for each in family}
        calls: dict[str, set[str]] = {}
        for methods in own.values():
            for name, asked in methods.items():
                calls.setdefault(name, set()).update(asked)
        names = reached(calls, is_hook, is_elsewhere)
        for each, methods in own.items():
            if more := names & methods.keys():
                found[each.key] = found.get(each.key, frozenset()) | more
    return found


def _family(project: Project, owner: Definition, depth: int = 0) -> Iterator[Definition]:
    """Yield a class, and those of the project that it derives from."""
    yield owner
    for base in project.bases(owner) if depth < _DEEPEST else ():
        yield from _family(project, base, depth + 1)


def _methods(owner: Definition) -> dict[str, set[str]]:
    """Return the methods of a class, each with what it asks of ``self``."""
    body = owner.node.body if isinstance(owner.node, ast.ClassDef) else []
    return {
        each.name: {
            node.attr
            for node in walked(each)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        for each in body
        if isinstance(each, _FUNCTIONS)
    }
