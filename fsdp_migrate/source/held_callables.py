"""Functions that are given away and called elsewhere: ``Trainer(make=build)``, ``self._make(model)``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import named_arguments, parameters_of, placed_names
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.project import Project

    Called = Callable[[ast.expr, Place], Iterator[Definition]]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def given_callables(
    project: Project, called: Called, owner: Definition, name: str
) -> Iterator[tuple[ast.expr, Place]]:
    """Yield what calls give to a parameter by its name, where they stand.

    Args:
        project: The project.
        called: What of the project an expression of a file names.
        owner: The function, or the class, whose parameter it is.
        name: What that is called.
    """
    last = owner.name.removesuffix(".__init__").rpartition(".")[2]
    keyword = re.compile(rf"\b{re.escape(name)}\s*=(?!=)|\b{re.escape(last)}\s*\(")
    place = _place(project, owner, name)
    for module in project.parsed(path for path, text in project.texts.items() if keyword.search(text)):
        for scope in scopes_of(module):
            for statement in scope.statements:
                for call in statement.calls:
                    value = named_arguments(call).get(name)
                    if value is None and place is not None and len(call.args) > place:
                        value = call.args[place] if _is_called(call, last) else None
                    if value is not None and _takes(project, called, (call, statement.place), owner, name):
                        yield value, statement.place
    if place == 0:
        yield from _decorated(project, owner)


def _decorated(project: Project, owner: Definition) -> Iterator[tuple[ast.expr, Place]]:
    """Yield the names of what a decorator stands above, or the function that gives it: ``@timed(1)``."""
    known = {owner.name: False, owner.name.rpartition(".")[0]: True}
    names = "|".join(map(re.escape, filter(None, known)))
    pattern = re.compile(rf"^[ \t]*@(?:\w+\.)*(?:{names})\b", re.MULTILINE)
    for module in project.parsed(path for path, text in project.texts.items() if pattern.search(text)):
        for each in module.definitions.values():
            for by in each.node.decorator_list:
                is_made = isinstance(by, ast.Call)
                text = dotted(by.func if isinstance(by, ast.Call) else by) or ""
                named = project.named(text, Place(each.module, "")) if text else None
                is_its = named is not None and named.module is owner.module and named.name in known
                if is_its and named is not None and known[named.name] is is_made:
                    name = ast.Name(each.node.name, ast.Load(), lineno=1, col_offset=0)
                    yield name, Place(each.module, each.name.rpartition(".")[0])


def called_parameter(project: Project, func: ast.expr, place: Place) -> tuple[Definition, str] | None:
    """Return the function, or the class, whose parameter is called, also by an attribute; and its name."""
    text = dotted(func) or ""
    if not text.startswith("self."):
        scope = place.scope
        while scope:  # a decorator's inner function calls what the decorator was given
            found = place.module.definitions.get(scope)
            if found is not None and text in _names(found):
                return found, text
            scope = scope.rpartition(".")[0]
        return None
    owner = project.class_of(place)
    made = project.method(owner, "__init__")
    for node in walked(made.node) if owner is not None and made is not None else ():
        if isinstance(node, ast.Assign) and any(dotted(target) == text for target in node.targets):
            parts = node.value.values if isinstance(node.value, ast.BoolOp) else [node.value]
            held = [part.id for part in parts if isinstance(part, ast.Name)]
            if owner is not None and made is not None and held and held[0] in _names(made):
                return owner, held[0]
    return None


def _place(project: Project, owner: Definition, name: str) -> int | None:
    """Return the place of a parameter among those that are given by it."""
    is_class = isinstance(owner.node, ast.ClassDef)
    made = project.method(owner, "__init__") if is_class else owner
    if made is None or isinstance(made.node, ast.ClassDef):
        return None
    order = placed_names(made.node, is_method=True)
    return order.index(name) if name in order else None


def _is_called(call: ast.Call, last: str) -> bool:
    is_starred = any(isinstance(each, ast.Starred) for each in call.args)
    return last_name(call.func) == last and not is_starred


def _takes(
    project: Project, called: Called, where: tuple[ast.Call, Place], owner: Definition, name: str
) -> bool:
    """Tell whether a call is of the owner of a parameter, or of what has one of the same name to hand on."""
    call, place = where
    for definition in called(call.func, place):
        if definition is owner:
            return True
        is_class = isinstance(definition.node, ast.ClassDef)
        made = project.method(definition, "__init__") if is_class else definition
        if made is not None and name in _names(made) and _hands_on(made, name):
            return True
    return False


def _hands_on(function: Definition, name: str) -> bool:
    return any(
        each.arg == name and isinstance(each.value, ast.Name) and each.value.id == name
        for call in walked(function.node)
        if isinstance(call, ast.Call)
        for each in call.keywords
    )


def _names(function: Definition) -> set[str]:
    """Return what the parameters of a function are called."""
    if not isinstance(function.node, _FUNCTIONS):
        return set()
    return {each.arg for each in parameters_of(function.node)}
