"""Classes of a project that hold FSDP2's model as ``.module``, so that code of FSDP1's wrapper goes on."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Module, Project, dotted, last_name
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.python.links import Links


_HOLDS: Final = re.compile(r"\bself\.module\s*=")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def with_compat_modules(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files of a project that gives such an object wherever FSDP2 shards."""
    texts = project.texts
    if not any(map(_HOLDS.search, texts.values())):
        return links
    homes = [path for path, text in texts.items() if any(name in text for name in catalog.FSDP2_FUNCTIONS)]
    modules = (project.module(path) for path in homes)
    if not any(_wraps(project, module) for module in modules if module is not None):
        return links
    return {**links, **{p: replace(links.get(p, NOTHING), keeps_module=True) for p in {*links, *homes}}}


def _wraps(project: Project, module: Module) -> bool:
    """Tell whether a file puts what FSDP2 shards into an object of a class that has it as ``.module``."""
    for function in (node for node in walked(module.tree) if isinstance(node, _FUNCTIONS)):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        sharded = {ast.unparse(call.args[0]) for call in calls if call.args and _is_fsdp2s(call)}
        for call in calls:
            given = call.args[0] if call.args else None
            if given is None or _is_fsdp2s(call):
                continue
            is_sharded = ast.unparse(given) in sharded or (isinstance(given, ast.Call) and _is_fsdp2s(given))
            if is_sharded and any(map(_holds_module, _classes(project, call))):
                return True
    return False


def _is_fsdp2s(call: ast.Call) -> bool:
    return last_name(call.func) in catalog.FSDP2_FUNCTIONS


def _classes(project: Project, call: ast.Call) -> Iterator[ast.ClassDef]:
    """Yield the classes of this name in the project, which a call makes an object of."""
    name = last_name(call.func)
    if not name or not any(f"class {name}" in text for text in project.texts.values()):
        return
    for path in project.texts:
        home = project.module(path) if f"class {name}" in project.texts[path] else None
        found = home.definitions.get(name) if home is not None else None
        if found is not None and isinstance(found.node, ast.ClassDef):
            yield found.node


def _holds_module(node: ast.ClassDef) -> bool:
    """Tell whether objects of a class have what they are given as ``.module``."""
    for method in node.body:
        if isinstance(method, _FUNCTIONS) and method.name == "__init__":
            names = {arg.arg for arg in method.args.args}
            for each in ast.walk(method):
                is_set = isinstance(each, ast.Assign) and dotted(each.targets[0]) == "self.module"
                if is_set and isinstance(each, ast.Assign) and dotted(each.value) in names:
                    return True
    return False
