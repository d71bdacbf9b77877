"""Classes of a project that wrap models as FSDP1's does, that derive from it, and that no module is of."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Place, dotted, last_name
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import DDP, WRAPPERS


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project


_DEEPEST = 4
_ASKS = frozenset({"isinstance", "issubclass"})
_ASKED = re.compile(r"\bisinstance\([^\n]*?,\s*\(?([\w., \t\n]+)\)")
_PLAIN = frozenset(
    {"ABC", "BaseException", "Enum", "Exception", "Generic", "IntEnum", "NamedTuple", "Protocol", "StrEnum"}
    | {"TypedDict", "dict", "list", "object", "str", "tuple"}
)
"""What is no module, by its last name, and none is in a class that derives from these alone."""


def wrapper_classes(project: Project, module: Module) -> frozenset[str]:
    """Return those that a file imports, as its imports write them: by their names, or by their bases."""
    named = {written for written in module.imports.values() if WRAPPERS.search(written)}
    named |= {written for text in _asked(module) if (written := project.qualified(text, Place(module, "")))}
    found = {written: project.find(module, written) for written in named}
    return frozenset(
        written
        for written, owner in found.items()
        if owner is not None
        and isinstance(owner.node, ast.ClassDef)
        and not project.is_subclass(owner)
        and (WRAPPERS.search(written) or _is_ddps(project, owner))
    )


def _asked(module: Module) -> Iterator[str]:
    """Yield the classes that a file asks objects for: ``isinstance(model, (parallel.Own, Net))``."""
    for node in walked(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in _ASKS and len(node.args) == 2:
            classes = node.args[1]
            each = classes.elts if isinstance(classes, ast.Tuple) else [classes]
            yield from filter(None, map(dotted, each))


def _is_ddps(project: Project, owner: Definition, depth: int = 0) -> bool:
    """Tell whether a class derives from DistributedDataParallel, over files too."""
    texts = filter(None, map(dotted, owner.node.bases if isinstance(owner.node, ast.ClassDef) else ()))
    if any(project.qualified(text, Place(owner.module, "")) in DDP for text in texts):
        return True
    return depth < _DEEPEST and any(_is_ddps(project, base, depth + 1) for base in project.bases(owner))


def subclasses(project: Project, modules: Iterable[Module]) -> dict[Path, dict[str, frozenset[str]]]:
    """Return by file the subclasses of FSDP1's class that it imports, with the names that these give anew."""
    names = _names_of_subclasses(project)
    found: dict[Path, dict[str, frozenset[str]]] = {}
    for module in modules if names else ():
        for written in set(module.imports.values()):
            owner = project.find(module, written) if written.rpartition(".")[2] in names else None
            if owner is not None and isinstance(owner.node, ast.ClassDef) and project.is_subclass(owner):
                found.setdefault(module.path, {})[written] = frozenset(_own(project, owner))
    return found


def _names_of_subclasses(project: Project) -> set[str]:
    """Return what classes are called that derive from FSDP1's, or by their words from one of those."""
    found: set[str] = set()
    for module in project.parsed(project.holding([catalog.FSDP])):
        owners = module.definitions.values()
        classes = (each for each in owners if isinstance(each.node, ast.ClassDef))
        found.update(each.node.name for each in classes if project.is_subclass(each))
    for module in project.parsed(project.holding(found)):
        for each in module.definitions.values() if found else ():
            bases = each.node.bases if isinstance(each.node, ast.ClassDef) else ()
            if any(last_name(base) in found for base in bases):
                found = found | {each.node.name}
    return found


def class_functions(classes: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return what functions of subclasses are FSDP1's own, by their names as imports write them.

    Example:
        >>> class_functions({"lib.Sharded": catalog.CLASS_FUNCTIONS - {"optim_state_dict"}})
        {'lib.Sharded.optim_state_dict': 'torch.distributed.fsdp.FullyShardedDataParallel.optim_state_dict'}
    """
    return {
        f"{written}.{name}": f"{catalog.PACKAGE}.{catalog.FSDP}.{name}"
        for written, own in classes.items()
        for name in sorted(catalog.CLASS_FUNCTIONS - own)
    }


def _own(project: Project, owner: Definition, depth: int = 0) -> Iterator[str]:
    assert isinstance(owner.node, ast.ClassDef)
    yield from (each.name for each in owner.node.body if isinstance(each, ast.FunctionDef))
    for base in project.bases(owner) if depth < _DEEPEST else ():
        yield from _own(project, base, depth + 1)


def no_modules(project: Project, modules: Iterable[Module]) -> dict[Path, frozenset[str]]:
    """Return by file the project's classes that it asks for and that no module is of, as imports write them.

    None that a module may have beside its own class: ``class Net(nn.Module, Trainable)``.
    """
    found: dict[Path, frozenset[str]] = {}
    for module in modules:
        asked = _ASKED.findall(project.texts.get(module.path, ""))
        words = {each.strip().rpartition(".")[2] for given in asked for each in given.split(",")}
        own = {name: each for name, each in module.definitions.items() if name in words}
        written = {each for name, each in module.imports.items() if name in words}
        # `from lib import states`, and `states.RandomState`
        written |= {f"{each}.{word}" for each in module.imports.values() for word in words}
        every = {**{each: project.find(module, each) for each in written}, **own}
        plain = (name for name, each in every.items() if each is not None and _is_no_module(project, each))
        if names := frozenset(plain):
            found[module.path] = names
    return found


def _is_no_module(project: Project, owner: Definition, depth: int = 0) -> bool:
    """Tell whether a class, and each that derives from it, derives from nothing that may be a module."""
    if not isinstance(owner.node, ast.ClassDef) or depth > _DEEPEST or not _is_plain(project, owner):
        return False
    heirs = re.compile(rf"^[ \t]*class \w+\([^)]*\b{re.escape(owner.node.name)}\b", re.MULTILINE)
    holding = project.holding([owner.node.name])
    for module in project.parsed(path for path in holding if heirs.search(project.texts[path])):
        for each in module.definitions.values():
            bases = each.node.bases if isinstance(each.node, ast.ClassDef) else ()
            # By its last name: where that is another's class, nothing is lost but this answer.
            is_heir = each is not owner and any(last_name(base) == owner.node.name for base in bases)
            if is_heir and not _is_no_module(project, each, depth + 1):
                return False
    return True


def _is_plain(project: Project, owner: Definition, depth: int = 0) -> bool:
    """Tell whether all that a class derives from is seen, and none is a module."""
    bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else ()
    taken = [each.value if isinstance(each, ast.Subscript) else each for each in bases]
    others = [each for each in taken if last_name(each) not in _PLAIN]
    known = project.bases(owner)
    is_seen = depth <= _DEEPEST and len(known) >= len(others)
    return is_seen and all(_is_plain(project, each, depth + 1) for each in known)
