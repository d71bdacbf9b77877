"""Functions that are looked up by a name: ``getattr(helpers, cfg.step)``, ``globals()[f"step_{name}"]``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Place, dotted


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Definition, Module, Project


_OF_ALL: Final = frozenset({"globals", "vars"})
_ANY: Final = r"[a-zA-Z]\w*"
"""What begins with a mark is no step that a config names."""
_DEEPEST: Final = 4


def looked_up(project: Project, node: ast.expr, place: Place) -> Iterator[Definition]:
    """Yield the functions, and of ``self`` the methods, that an expression may look up by a name.

    Of a name that is put together, those that begin and end as it does.
    """
    asked = _asked(node)
    if asked is None:
        return
    owner, name = asked
    pattern = re.compile(pattern_of(name))
    if dotted(owner) in {"self", "cls"}:
        yield from _methods(project, project.class_of(place), pattern)
        return
    for module in _modules(project, owner, place):
        for each in module.definitions.values():
            is_named = "." not in each.name and pattern.fullmatch(each.name) is not None
            if is_named and not isinstance(each.node, ast.ClassDef):
                yield each


def pattern_of(node: ast.expr) -> str:
    """Return what the names match that a text stands for, or that it is put together of.

    Example:
        >>> pattern_of(ast.parse("'step'", mode="eval").body)
        'step'
    """
    found = _pattern(node)
    return _ANY if found == r"\w*" else found


def _pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_pattern(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr == "format" and isinstance(func.value, ast.Constant):
        return r"\w*".join(map(re.escape, re.split(r"\{\w*\}", str(func.value.value))))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        return r"\w*".join(map(re.escape, re.split(r"%[sd]", str(node.left.value))))
    return r"\w*"


def _asked(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return what is asked for a function, and for which: ``getattr(m, n)``, ``vars(m)[n]``."""
    if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 1:
        return node.args[0], node.args[1]
    held, name = None, None
    if isinstance(node, ast.Subscript):
        held, name = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        held, name = node.func.value, node.args[0] if node.args else None
    if isinstance(held, ast.Attribute) and held.attr == "__dict__" and name is not None:
        return held.value, name
    if isinstance(held, ast.Call) and dotted(held.func) in _OF_ALL and name is not None:
        return (held.args[0] if held.args else held), name
    return None


def _modules(project: Project, owner: ast.expr, place: Place) -> Iterator[Module]:
    """Yield the files of the project that an expression is: by an import, or the one that it stands in."""
    if isinstance(owner, ast.Call):
        func, text = dotted(owner.func) or "", owner.args[0] if owner.args else None
        if func in _OF_ALL:
            yield place.module
        is_imported = func.rpartition(".")[2] == "import_module" and isinstance(text, ast.Constant)
        written = str(text.value) if is_imported and isinstance(text, ast.Constant) else ""
    elif isinstance(owner, ast.Subscript):
        if dotted(owner.value) == "sys.modules" and dotted(owner.slice) == "__name__":
            yield place.module
        return
    else:
        name = dotted(owner)
        written = project.qualified(name, place) if name is not None else ""
    for path in project.paths(place.module, written) if written else ():
        module = project.module(path)
        yield from () if module is None else (module,)


def _methods(
    project: Project, owner: Definition | None, pattern: re.Pattern[str], depth: int = 0
) -> Iterator[Definition]:
    """Yield the methods of a class, and of those that it derives from, whose names match."""
    if owner is None or depth > _DEEPEST:
        return
    start = f"{owner.name}."
    for name, each in owner.module.definitions.items():
        last = name.removeprefix(start)
        if name.startswith(start) and pattern.fullmatch(last) and not isinstance(each.node, ast.ClassDef):
            yield each
    for base in project.bases(owner):
        yield from _methods(project, base, pattern, depth + 1)
