"""Whether hooks of a project may put keys into the states of the models that it trains."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.named_at_run import NamedAtRun
from fsdp_migrate.source.python.state_hooks import adds_keys, hooks_that_add


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from fsdp_migrate.source.project import Definition, Module, Project


def has_state_hooks(project: Project, around: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether such a hook may be registered: not where nothing makes an object of its class.

    ``around``: the files and folders that were given, where configs may name classes.
    """
    adding = [path for path, text in project.texts.items() if adds_keys(text)]
    callers = Callers(project)
    named = NamedAtRun(callers, around)
    for module in map(project.module, adding):
        if module is None:
            return True
        elsewhere = functools.partial(_file_of, project, module)
        owners = [_class_around(module, call) for call in hooks_that_add(module.tree, elsewhere)]
        if any(each is None or callers.may_be_made(each) or named.may_be(each) for each in owners):
            return True
    return False


def _file_of(project: Project, module: Module, name: str) -> ast.Module | None:
    """Return the file that a function is imported from, by the name that it has there."""
    written = module.imports.get(name, "")
    found = project.find(module, written) if written.rpartition(".")[2] == name else None
    return found.module.tree if found is not None and found.name == name else None


def _class_around(module: Module, call: ast.Call) -> Definition | None:
    """Return the class, of a file's top level, in whose methods a call stands."""
    tops = (each for name, each in module.definitions.items() if "." not in name)
    classes = (each for each in tops if isinstance(each.node, ast.ClassDef))
    return next((each for each in classes if any(node is call for node in ast.walk(each.node))), None)
