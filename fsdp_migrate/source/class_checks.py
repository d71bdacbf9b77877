"""The functions of a project that ask whether a model is FSDP1's, and nothing else: ``is_sharded(model)``.

And those that are given the class for that: ``wraps(model, FSDP)``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asking_functions import asked_parameters, looked_parameters
from fsdp_migrate.source.project import Place, dotted


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fsdp_migrate.source.asking_functions import Asked
    from fsdp_migrate.source.project import Definition, Module, Project


def class_checks(project: Project, modules: Iterable[Module]) -> dict[Path, frozenset[str]]:
    """Return by file those that it imports, as its imports write them."""
    names = _names(project)
    found: dict[Path, frozenset[str]] = {}
    for module in modules if names else ():
        imported = set(module.imports.values())
        written = {each for each in imported if each.rpartition(".")[2] in names}
        written |= {f"{each}.{name}" for each in imported for name in names}
        own = {each: project.find(module, each) for each in written}
        asking = frozenset(each for each, made in own.items() if made is not None and _asks(project, made))
        if asking:
            found[module.path] = asking
    return found


def asking_functions(project: Project, modules: Iterable[Module]) -> dict[Path, dict[str, Asked]]:
    """Return by file what it imports that asks for a class which it is given, as its imports write it."""
    return _imported(project, modules, catalog.FSDP, asked_parameters)


def looking_functions(project: Project, modules: Iterable[Module]) -> dict[Path, dict[str, Asked]]:
    """Return by file what it imports that only looks at a function which it is given, its signature say."""
    return _imported(project, modules, ".forward", looked_parameters)


def _imported(
    project: Project, modules: Iterable[Module], word: str, parameters: Callable[[ast.AST], Asked]
) -> dict[Path, dict[str, Asked]]:
    found: dict[Path, dict[str, Asked]] = {}
    for module in modules:
        if word not in project.texts[module.path]:
            continue
        for written in module.imports.values():
            made = project.find(module, written)
            asked = parameters(made.node) if made is not None and made.module is not module else None
            if asked:
                found.setdefault(module.path, {})[written] = asked
    return found


def _names(project: Project) -> set[str]:
    """Return what such functions are called."""
    found: set[str] = set()
    for module in project.parsed(project.holding([catalog.FSDP])):
        made = module.definitions.items()
        found.update(name for name, each in made if "." not in name and _asks(project, each))
    return found


def _asks(project: Project, made: Definition) -> bool:
    """Tell whether a function's one line returns whether its first argument is FSDP1's."""
    if not isinstance(made.node, ast.FunctionDef) or not made.node.args.args:
        return False
    *above, last = made.node.body
    is_one = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in above)
    if not is_one or not isinstance(last, ast.Return):
        return False

    def is_class(node: ast.expr) -> bool:
        text = dotted(node)
        known = project.qualified(text, Place(made.module, "")) if text else ""
        return catalog.fsdp1_name(known) == catalog.FSDP

    def is_there(node: ast.expr) -> bool:
        """Tell whether it asks for the class alone, which an older torch lacks: ``FSDP is not None``."""
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.IsNot) and len(node.ops) == 1:
            return is_class(node.left) and ast.unparse(node.comparators[0]) == "None"
        return is_class(node)

    asked = last.value
    if isinstance(asked, ast.BoolOp) and isinstance(asked.op, ast.And):
        left = [each for each in asked.values if not is_there(each)]
        asked = left[0] if len(left) == 1 else None
    return (
        isinstance(asked, ast.Call)
        and dotted(asked.func) == "isinstance"
        and len(asked.args) == 2
        and dotted(asked.args[0]) == made.node.args.args[0].arg
        and is_class(asked.args[1])
    )
