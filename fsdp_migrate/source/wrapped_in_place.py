"""Models of which a statement of a project's file wraps parts, in place, and functions that do so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Definition, dotted, start_of
from fsdp_migrate.source.python.argument_places import given_at, placed_names
from fsdp_migrate.source.python.makers import PUTS_BY_NAME
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.source.project import Start
    from fsdp_migrate.source.project_kinds import Fact
    from fsdp_migrate.source.project_switches import Mark


_PUTS = frozenset({"add_module", "register_module", "set_submodule"})


def whole_of_target(target: ast.expr, value: ast.expr) -> str | None:
    """Return the model a part of which an assignment replaces by what is made of that part.

    ``model`` of ``model.layers[i] = FSDP(layer)``, and of ``model.head = FSDP(model.head)``.
    """
    if isinstance(target, ast.Subscript):
        return dotted(target.value.value) if isinstance(target.value, ast.Attribute) else None
    text = dotted(target) if isinstance(target, ast.Attribute) else None
    parts = (dotted(each) for each in ast.walk(value) if isinstance(each, ast.Attribute))
    return text.rpartition(".")[0] if text is not None and text in parts else None


def put_into(call: ast.Call) -> tuple[str | None, ast.expr | None]:
    """Return the model that a call puts a part into, and the part: ``setattr(model, name, part)``."""
    is_function = isinstance(call.func, ast.Name) and PUTS_BY_NAME.search(call.func.id) is not None
    if is_function and len(call.args) == 3:
        return dotted(call.args[0]), call.args[2]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _PUTS and len(call.args) == 2:
        return dotted(call.func.value), call.args[1]
    return None, None


def wrapped_parameters(
    definition: Definition, wholes: Collection[Fact], made: Mapping[Fact, Sequence[Mark]]
) -> Iterator[tuple[int, str]]:
    """Yield the parameters of a function of whose modules it wraps parts, before it binds them anew."""
    for place, name in enumerate(_parameters(definition)):
        fact = definition.key, name
        if fact in wholes:
            first = min((mark.start[0] for mark in made.get(fact, ())), default=0)
            if all(line > first for line in _bound_at(definition.node, name)):
                yield place, name


def sharded_parameters(
    definition: Definition, inner: Mapping[Fact, Collection[Start]]
) -> Iterator[tuple[int, str]]:
    """Yield the parameters of a function that are models which it shards, before it binds them anew."""
    for place, name in enumerate(_parameters(definition)):
        first, _ = min(inner.get((definition.key, name), ()), default=(None, 0))
        if first is not None and all(line >= first for line in _bound_at(definition.node, name)):
            yield place, name


def _parameters(definition: Definition) -> list[str]:
    """Return the names of a function's parameters in their order, without ``self``; none of a class."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        return []
    return [
        *placed_names(node, is_method=definition.owner is not None),
        *(each.arg for each in node.args.kwonlyargs),
    ]


def as_it_was(given: ast.expr) -> ast.expr:
    """Return the model of ``model.to(device)``."""
    while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        if given.func.attr not in SAME_MODEL:
            break
        given = given.func.value
    return given


def gives_another_name(node: ast.stmt, text: str) -> bool:
    """Tell whether a statement does not bind a name to what it makes: ``model = FSDP(net)``."""
    targets = node.targets if isinstance(node, ast.Assign) else ()
    parts = (each.elts if isinstance(each, (ast.Tuple, ast.List)) else [each] for each in targets)
    return all(dotted(each) != text for part in parts for each in part)


def is_of_a_loop(text: str, loops: Iterable[ast.AST]) -> bool:
    """Tell whether a loop binds a name anew in each round."""
    root = text.partition(".")[0]
    targets = (each.target for each in loops if isinstance(each, (ast.For, ast.AsyncFor)))
    return any(
        isinstance(each, ast.Name) and each.id == root for target in targets for each in ast.walk(target)
    )


def _bound_at(function: ast.AST, name: str) -> Iterator[int]:
    for each in ast.walk(function):
        if isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load):
            yield each.lineno


def given_for(call: ast.Call, place: int, name: str) -> str | None:
    """Return the name that a call gives for a parameter."""
    given = given_at(call, place, name)
    return dotted(given) if given is not None else None


def other_names_above(function: ast.AST | None, sharded: ast.stmt, text: str) -> Iterator[str]:
    """Yield the other names that a function gave a model above the statement that shards it.

    ``self.model = model`` above ``self.wrapped = prepare(model)``: FSDP2 shards in place.
    """
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    lines = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    above = [each for each in lines if start_of(each) < start_of(sharded)]
    for line in above:
        if dotted(line.value) != text:
            continue
        between = (each for each in above if start_of(each) > start_of(line))
        bound = {dotted(target) for each in between for target in each.targets}
        names = {dotted(each) for each in line.targets} - {None, text}
        yield from () if text in bound else sorted(name for name in names if name and name not in bound)
