"""What objects keep of a model's parameters before it is sharded, where another class, or file, shards it.

``self.chosen = list(self.net.parameters())`` in a mixin, in a base class, or in a function that is made a
method of the class from outside, and ``self.net = accelerator.prepare(self.net)`` in a class that has it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.held_parameters import HeldParameters
from fsdp_migrate.source.method_family import INIT, Family, Method, Spot, family_of
from fsdp_migrate.source.project import Definition, Module, Place, Project, dotted
from fsdp_migrate.source.python.argument_places import argument_at, given_at
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.taken_lists import COUNTS, above_of, is_taken_at


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.following import _Following
    from fsdp_migrate.source.python.links import Links


_EARLIER: Final = re.compile(r"^_?(get|create|make|build|configure|init|setup|prepare)(_|$)")
_LAUNCHED: Final = re.compile(r"\bDistributedType\.FSDP\b|\bis_fsdp(?:_enabled)?\b|\bfsdp_plugin\b")
_ACCELERATORS: Final = frozenset({"acc", "accel", "accelerator"})
_ASKS: Final = re.compile(r"\.(?:named_)?parameters\(")


def with_kept_in_families(
    project: Project, links: dict[Path, Links], known: _Following | None
) -> dict[Path, Links]:
    """Return what each file is told, with its lines that keep such parameters.

    ``known``: the models of the project that were followed, if any were.
    """
    called = known.called if known is not None else _Named(project).called
    lines = KeptInFamilies(project, known, HeldParameters(called)).lines()
    return links | {
        path: replace(links.get(path, NOTHING), keeps_old=frozenset(found)) for path, found in lines.items()
    }


@dataclass(frozen=True, eq=False)
class _Named:
    """Answers which function a name stands for, where no models were followed."""

    project: Project

    def called(self, func: ast.expr, place: Place) -> list[Definition]:
        """Return the function or class of the project that an expression names."""
        text = dotted(func) or ""
        own = text.startswith("self.")
        found = self.project.own(text[5:], place) if own else self.project.named(text, place)
        return [] if found is None else [found]


@dataclass(eq=False)
class KeptInFamilies:
    """Finds for the files of a project the lines that keep such parameters, and who shards. Reads only."""

    project: Project
    known: _Following | None
    held: HeldParameters
    _patches: list[tuple[str, Method]] | None = field(default=None, repr=False)

    def lines(self) -> dict[Path, set[tuple[int, str]]]:
        """Return by file the lines, each with the framework that shards the model."""
        found: dict[Path, set[tuple[int, str]]] = {}
        for owner, spot, text, by in (*self._followed(), *self._asked_for()):
            for below in self._leaves(owner):
                family = family_of(self.project, below, self.patches)
                if not family.may_run(spot.method):
                    continue
                for method in family.methods:
                    if method.module is spot.method.module and method.owner is spot.method.owner:
                        continue  # one class of one file, which is looked at by itself
                    for line in self._kept(family, method, spot, text):
                        found.setdefault(method.module.path, set()).add((line, by))
        return found

    def _asked_for(self) -> Iterator[tuple[Definition, Spot, str, str]]:
        """Yield the same of Accelerate's ``prepare`` in files that ask how it was launched."""
        for path, text in self.project.texts.items():
            is_one = "prepare(" in text and _LAUNCHED.search(text)
            module = self.project.module(path) if is_one else None
            for name, each in module.definitions.items() if module is not None else ():
                if isinstance(each.node, ast.ClassDef) or each.owner is None or module is None:
                    continue
                method = Method(module, name.rpartition(".")[2], each.node, each.owner)
                for line, model in _prepared(each.node):
                    yield each.owner, Spot(method, line), model, "accelerate"

    def _followed(self) -> Iterator[tuple[Definition, Spot, str, str]]:
        """Yield where a method shards an attribute of its object, with the class, and by which framework."""
        if self.known is None:
            return
        places = {key: {mark.start[0] for mark in marks} for key, marks in self.known.made.items()}
        for key, starts in self.known.inner.items():
            places.setdefault(key, set()).update(line for line, _ in starts)
        for (scope, text), lines in places.items():
            path, name = self.project.split(scope)
            module = self.project.module(path)
            owner = self.project.class_of(Place(module, name)) if module is not None else None
            node = module.definitions.get(name) if module is not None else None
            if owner is None or node is None or module is None or not text.startswith("self."):
                continue
            if isinstance(node.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                method = Method(module, name.rpartition(".")[2], node.node, owner)
                by = by_whom(
                    {kind.rpartition(">")[2] for kind in self.known.facts.get((owner.key, text), ())}
                )
                yield from ((owner, Spot(method, line), text, by) for line in lines)

    def _leaves(self, owner: Definition, depth: int = 0) -> Iterator[Definition]:
        yield owner
        derived = self.known.derived if self.known is not None else {}
        for below in derived.get(owner.key, ()) if depth < 3 else ():
            yield from self._leaves(below, depth + 1)

    @property
    def patches(self) -> list[tuple[str, Method]]:
        """The functions that statements make methods of a class: ``cls.collect = collect``."""
        if self._patches is None:
            self._patches = list(self._find_patches())
        return self._patches

    def _find_patches(self) -> Iterator[tuple[str, Method]]:
        for path, text in self.project.texts.items():
            module = self.project.module(path) if _ASKS.search(text) and "self" in text else None
            for name, each in module.definitions.items() if module is not None else ():
                node = each.node
                if isinstance(node, ast.ClassDef) or each.owner is not None or module is None:
                    continue
                if [arg.arg for arg in node.args.args[:1]] == ["self"]:
                    set_as = _set_as(module, node.name)
                    yield from ((attr, Method(module, name, node, None)) for attr in set_as)

    def _kept(self, family: Family, method: Method, spot: Spot, text: str) -> Iterator[int]:
        """Yield the lines of a method that keep parameters of a model before it is sharded."""
        if not _ASKS.search(ast.unparse(method.node)):
            return
        held = self.held.held(method.node, Place(method.module, method.name))
        for name, models in held.items():
            lines = _lines_of(method.node, name) if name.startswith("self.") else []
            if not lines or not any(_is_its(family, method, model, text) for model in models):
                continue
            first = family.runs_first(Spot(method, lines[0]), spot)
            if first and any(_is_read_after(family, method, each, name, spot) for each in family.methods):
                yield lines[0]


def _prepared(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the attributes of an object that Accelerate's ``prepare`` gives back as models, and where."""
    for node in ast.walk(function):
        call = node.value if isinstance(node, ast.Assign) else None
        func = call.func if isinstance(call, ast.Call) else None
        if not isinstance(node, ast.Assign) or not isinstance(call, ast.Call) or dotted(func or call) is None:
            continue
        start, _, last = (dotted(func) or "").rpartition(".") if func is not None else ("", "", "")
        if last == "prepare" and start.split(".")[-1] in _ACCELERATORS:
            targets = [part for each in node.targets for part in getattr(each, "elts", [each])]
            given = {dotted(arg) for arg in call.args} & {dotted(each) for each in targets}
            yield from ((node.lineno, text) for text in sorted(filter(None, given)))


def _set_as(module: Module, name: str) -> set[str]:
    """Return the attributes that a function is set as, of something else than ``self``."""
    found: set[str] = set()
    for node in walked(module.tree):
        if isinstance(node, ast.Assign) and dotted(node.value) == name:
            targets = (each for each in node.targets if isinstance(each, ast.Attribute))
            found |= {each.attr for each in targets if dotted(each.value) != "self"}
        elif isinstance(node, ast.Call) and dotted(node.func) == "setattr" and len(node.args) == 3:
            attr = node.args[1]
            if dotted(node.args[2]) == name and isinstance(attr, ast.Constant):
                found.add(str(attr.value))
    return found


def _lines_of(function: ast.AST, text: str) -> list[int]:
    """Return the lines that give a name its value, in their order."""
    lines = (each for each in ast.walk(function) if isinstance(each, ast.Assign))
    return sorted(each.lineno for each in lines if text in map(dotted, each.targets))


def _is_its(family: Family, method: Method, model: str, text: str) -> bool:
    """Tell whether a model of a method is an attribute of its object, a part of it, or what it is given."""
    if f"{model}.".startswith(f"{text}."):
        return True
    found = argument_at(method.node, model.partition(".")[0], is_method=True)
    if found is None or found[0] < 0:
        return False
    given = (given_at(call, *found) for call in family.calls_of(method))
    return any(each is not None and dotted(each) == text for each in given)


def _is_read_after(family: Family, keeps: Method, method: Method, name: str, spot: Spot) -> bool:
    """Tell whether a method reads an attribute once the model is sharded, for more than a count."""
    if method is keeps:
        return False
    above = above_of(method.node)
    for node in ast.walk(method.node):
        if not isinstance(node, ast.Attribute) or dotted(node) != name or not isinstance(node.ctx, ast.Load):
            continue
        around = above.get(id(node))
        if isinstance(around, ast.Call) and dotted(around.func) in COUNTS:
            continue
        here = Spot(method, node.lineno)
        if family.runs_first(spot, here):
            return True
        is_early = method.name == INIT or _EARLIER.search(method.name) or family.runs_first(here, spot)
        if not is_early and is_taken_at(node, above):
            return True
    return False
