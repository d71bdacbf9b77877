"""The optimizers of a project's own: their classes, and the methods of its models that make some."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_methods import makes_its_own
from fsdp_migrate.source.project import Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.accelerate_models import prepared_by
from fsdp_migrate.source.python.accelerators import PREPARES, is_accelerator, method_in
from fsdp_migrate.source.python.asked_as_models import asked_in
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.own_states import adds_to_its_state
from fsdp_migrate.source.python.parameters import is_torchs_optimizer, makes_optimizers
from fsdp_migrate.source.python.starred import given_in
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module, Project

    Called = Callable[[ast.expr, Place], Iterator[Definition]]


_DEEPEST = 4
# Another package's, as imports write it.
_OPTIMIZERS = re.compile(
    r"^(?!(?:torch|composer|lightning|pytorch_lightning)\.)[\w.]+\.\w*"
    r"(?:Optim|Ada[fgm]|LAMB|LARS|Lamb|Lars|Lion|Muon|SGD|Shampoo)\w*$"
)


def methods_by_file(
    project: Project, modules: Iterable[Module], models: Callable[[Module], set[str]]
) -> dict[Path, frozenset[str]]:
    """Return the methods of each file by which sharded models make their optimizers, by their names.

    Args:
        project: The project.
        modules: The files that FSDP1's models reach.
        models: Returns what those are called in a file, at one place or another.
    """
    names: set[str] = set()
    for module in modules:
        calls = [node for node in walked(module.tree) if isinstance(node, ast.Call)]
        asked = [
            (dotted(call.func.value), call.func.attr)
            for call in calls
            if isinstance(call.func, ast.Attribute) and makes_optimizers(call.func.attr)
        ]
        known = models(module) | {name for call in calls for name in _wrapped(call)} if asked else set()
        names |= {name for receiver, name in asked if receiver in known and not makes_its_own(module, name)}
    found: dict[Path, frozenset[str]] = {}
    for path in project.holding(names):
        defined = {
            name
            for name in names
            if re.search(rf"^[ \t]+def {name}\(self\b", project.texts[path], re.MULTILINE)
        }
        found.update({path: frozenset(defined)} if defined else {})
    return found


def _wrapped(call: ast.Call) -> Iterator[str]:
    """Yield what FSDP1's class, by its usual names, is given to wrap."""
    if last_name(call.func) in {"FSDP", catalog.FSDP}:
        yield from filter(None, map(dotted, call.args[:1]))


@dataclass(frozen=True)
class Made:
    """The classes of a project's own optimizers, where FSDP1's models are."""

    classes: dict[Path, set[str]] = field(default_factory=dict)
    """Their names by their file, and of those that they derive from."""
    names: dict[Path, set[str]] = field(default_factory=dict)
    """What other files call them, and classes of the project that hold one at most, as imports write it."""
    of_parts: dict[Path, set[str]] = field(default_factory=dict)
    """Those of the classes that may be made of a model that is sharded already."""
    with_states: set[str] = field(default_factory=set)
    """The names of those whose ``state_dict`` puts more into it than torch's optimizers do."""

    def of_wholes(self, path: Path) -> frozenset[str]:
        """Return the classes of a file that are made of plain models alone, which are sharded below."""
        return frozenset(self.classes.get(path, set()) - self.of_parts.get(path, set()))


def makers_beside(modules: Iterable[Module], scopes: Collection[str], called: Called) -> set[Path]:
    """Return the files of functions that make optimizers and are called where a model is made FSDP1's.

    Such a one may be called above the wrapping, or in another branch: its optimizer steps the sharded model.

    Args:
        modules: The files that FSDP1's models reach.
        scopes: The functions that make models, by their keys.
        called: What of the project an expression of a file names.
    """
    found: set[Path] = set()
    for module in modules:
        for each in (statement for scope in scopes_of(module) for statement in scope.statements):
            for call in each.calls if f"{module.path}:{each.place.scope}" in scopes else ():
                if makes_optimizers(last_name(call.func)):
                    found.update(definition.module.path for definition in called(call.func, each.place))
    return found


def made_beside_models(
    modules: Iterable[Module], owners: set[str], called: Called, off: Collection[ast.Call] = ()
) -> Made:
    """Return the optimizers of a project's own that are made beside FSDP1 models.

    Args:
        modules: The files.
        owners: The paths of those that have FSDP1 models.
        called: What of the project an expression of a file names.
        off: Calls that run without FSDP alone.
    """
    made = Made()
    for module in (each for each in modules if str(each.path) in owners):
        prepared = set(map(id, _prepared_below(module)))
        for node in walked(module.tree):
            if isinstance(node, ast.Call) and node not in off:
                for definition in picked(node.func, module, called):
                    is_one = note(definition, called, made.classes)
                    if is_one and id(node) not in prepared:
                        note(definition, called, made.of_parts)
                    if is_one and any(adds_to_its_state(each.node) for each in line_of(definition, called)):
                        made.with_states.add(definition.name.split(".")[-1])
                    if dotted(node.func) and (is_one or _derives_from_nothing(definition, called)):
                        made.names.setdefault(module.path, set()).update(names_of(node.func, module))
    return made


def picked(value: ast.expr, module: Module, called: Called, depth: int = 0) -> Iterator[Definition]:
    """Yield the classes that an expression may stand for: one itself, or what a function or a dict gives."""
    if depth > 2 * _DEEPEST:
        return
    found = list(called(value, Place(module, "")))
    yield from (each for each in found if isinstance(each.node, ast.ClassDef))
    if isinstance(value, ast.Call):
        name = last_name(value.func)
        for each in value.args[:1] if name == "partial" else ():
            yield from picked(each, module, called, depth + 1)
        functions = [
            each for each in called(value.func, Place(module, "")) if not isinstance(each.node, ast.ClassDef)
        ]
        for function in functions:
            for given in walked(function.node):
                if isinstance(given, ast.Return) and given.value is not None:
                    yield from picked(given.value, function.module, called, depth + 1)
    for each in () if found else _stands_for(value, module):
        yield from picked(each, module, called, depth + 1)


def _stands_for(value: ast.expr, module: Module) -> Iterator[ast.expr]:
    """Yield what a name is bound to in its file, which two values one is of, and what a dict holds."""
    if isinstance(value, ast.IfExp):
        yield from (value.body, value.orelse)
    elif isinstance(value, ast.Dict):
        yield from value.values
    elif isinstance(value, ast.Subscript):
        yield value.value
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        yield value.func.value
    elif isinstance(value, ast.Name):
        yield from _bound(module).get(value.id, ())


@functools.lru_cache(maxsize=8)
def _bound(module: Module) -> dict[str, list[ast.expr]]:
    """Return what each name of a file is assigned, wherever that is."""
    found: dict[str, list[ast.expr]] = {}
    for node in walked(module.tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
    return found


def _derives_from_nothing(definition: Definition, called: Called) -> bool:
    """Tell whether a class of the project holds an optimizer at most: it derives from none, nor its bases."""
    bases = {
        dotted(base) or "?"
        for each in line_of(definition, called)
        if isinstance(each.node, ast.ClassDef)
        for base in each.node.bases
        if not any(called(base, Place(each.module, "")))
    }
    return bases <= {"ABC", "abc.ABC", "object"}


def _prepared_below(module: Module) -> Iterator[ast.Call]:
    """Yield the calls that make what Accelerate's ``prepare`` is given below them, beside a model."""
    for scope in scopes_of(module):
        made: dict[tuple[str, str], list[ast.Call]] = {}
        for each in scope.statements:
            for call in each.calls:
                func = method_in(module.tree, call.func)
                given = [dotted(arg) or "" for arg in call.args]
                if any(isinstance(arg, ast.Starred) for arg in call.args):
                    given = given_in(module.tree, call)
                if func is None or func.attr not in PREPARES or len(given) < 2:
                    is_theirs = False
                else:
                    is_theirs = is_accelerator(dotted(func.value) or "", module.tree)
                if is_theirs and has_model(prepared_by(given, asked_in(module.tree))):
                    yield from (one for text in given for one in made.get((each.place.scope, text), ()))
            value = each.node.value if isinstance(each.node, ast.Assign) else None
            for target in each.node.targets if isinstance(each.node, ast.Assign) else ():
                if isinstance(value, ast.Call) and (text := dotted(target)) is not None:
                    made.setdefault((each.place.scope, text), []).append(value)


def names_of(func: ast.expr, module: Module) -> set[str]:
    """Return what a class is called, as imports write it, by another name of it too: ``cls = optims.Own``."""
    bound = _bound(module).get(func.id, []) if isinstance(func, ast.Name) else []
    return {_written(module, text) for each in (func, *bound) if (text := dotted(each)) is not None}


def _written(module: Module, text: str) -> str:
    root, _, rest = text.partition(".")
    written = module.imports.get(root, root)
    return f"{written}.{rest}" if rest else written


def note(definition: Definition, called: Called, found: dict[Path, set[str]]) -> bool:
    """Note a class, if it is an optimizer's."""
    line = list(line_of(definition, called))
    is_one = any(_is_torchs(each) or _steps_itself(each, called) for each in line)
    for each in line if is_one else ():
        found.setdefault(each.module.path, set()).add(each.name)
    return is_one


def line_of(definition: Definition, called: Called, depth: int = 0) -> Iterator[Definition]:
    """Yield a class and those of the project that it derives from."""
    yield definition
    assert isinstance(definition.node, ast.ClassDef)
    for base in definition.node.bases if depth < _DEEPEST else ():
        for above in called(base, Place(definition.module, "")):
            if isinstance(above.node, ast.ClassDef) and above is not definition:
                yield from line_of(above, called, depth + 1)


def _steps_itself(definition: Definition, called: Called) -> bool:
    """Tell whether a class derives from another package's optimizer, and has a whole step of its own."""
    assert isinstance(definition.node, ast.ClassDef)
    place = Place(definition.module, "")
    written = {_written(definition.module, dotted(base) or "") for base in definition.node.bases}
    is_others = not any(each for base in definition.node.bases for each in called(base, place))
    if not is_others or not any(_OPTIMIZERS.search(name) for name in written):
        return False
    steps = [
        each for each in definition.node.body if isinstance(each, ast.FunctionDef) and each.name == "step"
    ]
    asked = {node.attr for each in steps for node in ast.walk(each) if isinstance(node, ast.Attribute)}
    return "param_groups" in asked and "super().step" not in "".join(map(ast.unparse, steps))


def _is_torchs(definition: Definition) -> bool:
    """Tell whether a class derives from torch's optimizers itself."""
    assert isinstance(definition.node, ast.ClassDef)
    for base in definition.node.bases:
        whole = _written(definition.module, dotted(base) or "")
        if is_torchs_optimizer(whole):
            return True
    return False
