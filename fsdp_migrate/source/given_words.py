"""Functions of a project that are given ``fsdp`` of the Trainer's arguments: ``init(fsdp=args.fsdp)``."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.trainer_arguments import are_arguments
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Project
    from fsdp_migrate.source.python.links import Links


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def with_given_words(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Add the parameters of each file's functions to which ``fsdp`` of the Trainer's arguments comes."""
    found: dict[Path, set[tuple[str, str]]] = {}
    todo = []
    for path, text in project.texts.items():
        module = project.module(path) if ".fsdp" in text else None
        for call, value in _given(module.tree) if module is not None else ():
            owner, _, last = (dotted(value) or "").rpartition(".")
            if last == "fsdp" and are_arguments(owner, text):
                todo.append((call, value))
    while todo:
        call, value = todo.pop()
        for function, name in _taking(project, call, value):
            known = found.setdefault(function.module.path, set())
            if (function.name, name) not in known:
                known.add((function.name, name))
                inside = _given(function.node)
                todo += [(each, given) for each, given in inside if dotted(given) == name]
    told = {
        path: replace(links.get(path, NOTHING), given_words=frozenset(each)) for path, each in found.items()
    }
    return links | told


def _given(node: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call in walked(node):
        if isinstance(call, ast.Call):
            yield from ((call, each) for each in (*call.args, *(arg.value for arg in call.keywords)))


def _taking(project: Project, call: ast.Call, value: ast.expr) -> Iterator[tuple[Definition, str]]:
    """Yield the functions of a name, wherever they stand, and the parameter by which each takes a value."""
    func = call.func
    called = func.attr if isinstance(func, ast.Attribute) else dotted(func) or ""
    keyword = next((arg.arg for arg in call.keywords if arg.value is value), None)
    place = call.args.index(value) if value in call.args else -1
    for module in project.parsed(project.holding([called])) if called else ():
        for function in module.definitions.values():
            if function.name.rpartition(".")[2] != called or not isinstance(function.node, _FUNCTIONS):
                continue
            args = function.node.args
            placed = [each.arg for each in (*args.posonlyargs, *args.args)]
            if placed[:1] in (["self"], ["cls"]):
                placed = placed[1:]
            every = {*placed, *(each.arg for each in args.kwonlyargs)}
            name = (
                keyword if keyword is not None else "".join(placed[place : place + 1]) if place >= 0 else ""
            )
            if name in every:
                yield function, name
