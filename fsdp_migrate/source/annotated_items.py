"""What annotations say of the classes that a function's arguments, and what its loops go through, are of."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.plain_assigns import Assign
from fsdp_migrate.source.project import Place, dotted, last_name
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.argument_places import parameters_of
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Project


# What stands around the classes, or says nothing of them.
_TYPINGS: Final = ("collections.", "typing.", "typing_extensions.")
_ANY: Final = frozenset({"Any", "Callable", "Self", "Type", "TypeVar"})
_DEEPEST: Final = 6


def annotation_of(project: Project, name: str, place: Place) -> ast.expr | None:
    """Return the annotation of what a name of a function is, or of what is gone through to bind it."""
    node = project.node(place.module, place.scope)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    over = [
        loop.iter
        for loop in walked(node)
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.comprehension)) and dotted(loop.target) == name
    ]
    if not over:
        return _of_argument(node, name)
    found = [_of_list(project, node, dotted(each) or "", place) for each in over]
    return found[0] if len(found) == 1 else None


def names_of(project: Project, annotation: ast.expr | None, place: Place) -> frozenset[str] | None:
    """Return the classes that an annotation names; None where it leaves open what they are."""
    found: set[str] = set()
    for each in _parts(annotation):
        text = dotted(each) or ""
        written = project.qualified(text, place) or text
        definition = project.named(text, place)
        last = written.rpartition(".")[2]
        if last in _ANY or (definition is not None and _is_open(project, definition)):
            return None
        if definition is not None or ("." in written and not written.startswith(_TYPINGS)):
            found.add(last)
    return frozenset(found) or None


def is_of(project: Project, owner: Definition, names: frozenset[str], place: Place) -> bool:
    """Tell whether a class has one of some names, is derived from one of them, or is a base of it."""
    if not names.isdisjoint(_above(project, owner)):
        return True
    last = owner.name.rpartition(".")[2]
    known = (project.named(each, place) for each in names)
    return any(each is not None and last in _above(project, each) for each in known)


def _of_argument(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    return next((each.annotation for each in parameters_of(node) if each.arg == name), None)


def _of_list(
    project: Project, node: ast.FunctionDef | ast.AsyncFunctionDef, text: str, place: Place
) -> ast.expr | None:
    """Return the annotation of what a loop goes through: an argument, or an attribute of the object."""
    owner = project.class_of(place) if text.startswith("self.") else None
    if owner is None:
        return _of_argument(node, text)
    last = text.removeprefix("self.")
    for each in walked(owner.node):
        if isinstance(each, (ast.AnnAssign, Assign)) and {*map(dotted, targets_of(each))} & {last, text}:
            return each.annotation
    made = project.method(owner, "__init__")
    for each in walked(made.node) if made is not None else ():
        is_its = isinstance(each, ast.Assign) and any(dotted(target) == text for target in each.targets)
        if is_its and isinstance(each, ast.Assign) and isinstance(each.value, ast.Name):
            assert made is not None
            if isinstance(made.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return _of_argument(made.node, each.value.id)
    return None


def _parts(node: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the names in an annotation, in texts too."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            yield from _parts(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield node
    elif node is not None:
        for each in ast.iter_child_nodes(node):
            yield from _parts(each) if isinstance(each, ast.expr) else ()


def _is_open(project: Project, definition: Definition) -> bool:
    """Tell whether it is a protocol, which classes need not derive from, or no class."""
    return not isinstance(definition.node, ast.ClassDef) or "Protocol" in _above(project, definition)


def _above(project: Project, owner: Definition, depth: int = 0) -> set[str]:
    """Return what a class, and those that it derives from, are called."""
    node = owner.node
    found = {owner.name.rpartition(".")[2]}
    if depth > _DEEPEST or not isinstance(node, ast.ClassDef):
        return found
    bases = (each.value if isinstance(each, ast.Subscript) else each for each in node.bases)
    found |= {last_name(each) for each in bases}
    return found.union(*(_above(project, each, depth + 1) for each in project.bases(owner)))
