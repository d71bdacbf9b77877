"""Optimizers of a project's own that a registry makes: ``build_optimizer(model, config)`` of another package.

Of which class one is, a config says by its name: each that stands in the registry may be it.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.optimizer_classes import line_of
from fsdp_migrate.source.project import Definition, Place, dotted, is_a_test
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links

    Called = Callable[[ast.expr, Place], Iterator[Definition]]


# mmcv's `OPTIMIZERS`; not its `OPTIMIZER_BUILDERS`, nor mmengine's `OPTIM_WRAPPERS`.
_REGISTRY: Final = re.compile(r"(?:^|[._])optim(?:izer)?s?$", re.IGNORECASE)
_REGISTERS: Final = re.compile(r"^[ \t]*@[\w.]*optim(?:izer)?s?\b", re.IGNORECASE | re.MULTILINE)
_MAKES: Final = re.compile(r"^(?:build|create|get|make)_\w*optim(?:izer|_wrapper)?s?$")
_SHARDS: Final = re.compile(r"fsdp|FullyShardedDataParallel", re.IGNORECASE)
_BUILDS: Final = frozenset({"build", "create"})
# Composer's own optimizers go with its FSDP2.
_KNOWN: Final = frozenset({"composer", "torch", "typing_extensions"}) | sys.stdlib_module_names


def registered(project: Project, module: Module, known: Links) -> Iterator[Definition]:
    """Yield the project's classes of which a registry may make optimizers of sharded models, in a file.

    Args:
        project: The project.
        module: The file. Nothing is yielded where what makes its optimizers is seen.
        known: What others say of it: whether it is given sharded models, or makes optimizers of theirs.
    """
    text = project.texts[module.path]
    is_given = known.optimizer_makers or known.given_sharded or _SHARDS.search(text)
    if "optim" not in text.lower() or not is_given:
        return
    if not any(
        isinstance(node, ast.Call) and _is_maker(node, project, module) for node in walked(module.tree)
    ):
        return
    paths = [path for path, text in project.texts.items() if _REGISTERS.search(text) and not is_a_test(path)]
    for other in project.parsed(paths):
        for node in walked(other.tree):
            if isinstance(node, ast.ClassDef) and any(map(_is_of_optimizers, node.decorator_list)):
                definition = project.named(node.name, Place(other, ""))
                if definition is not None and isinstance(definition.node, ast.ClassDef):
                    yield definition


def derives_from_anothers(definition: Definition, called: Called) -> bool:
    """Tell whether a class of the project derives from a class of another package."""
    lines = ((each, each.node) for each in line_of(definition, called))
    bases = (
        (each.module, base) for each, node in lines if isinstance(node, ast.ClassDef) for base in node.bases
    )
    return any(_is_anothers(base, module, called) for module, base in bases)


def _is_anothers(base: ast.expr, module: Module, called: Called) -> bool:
    written = module.imports.get((dotted(base) or "").partition(".")[0], "")
    is_package = bool(written) and not written.startswith(".") and written.partition(".")[0] not in _KNOWN
    return is_package and not any(called(base, Place(module, "")))


def _is_maker(call: ast.Call, project: Project, module: Module) -> bool:
    """Tell whether a call is of a function that the project does not have, and that makes an optimizer."""
    text, place = dotted(call.func) or "", Place(module, "")
    owner, _, last = (project.qualified(text, place) or text).rpartition(".")
    if text.startswith("self.") or project.named(text, place) is not None:
        return False
    return bool(_MAKES.match(last)) or (last in _BUILDS and _REGISTRY.search(owner) is not None)


def _is_of_optimizers(decorator: ast.expr) -> bool:
    """Tell whether a decorator puts a class into a registry of optimizers, as its words say."""
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    return any(map(_REGISTRY.search, (dotted(func) or "").split(".")))
