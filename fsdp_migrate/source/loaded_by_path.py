"""Files of a project that a source loads by their paths: ``spec_from_file_location(name, "pre.py")``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.argument_places import given_at, placed_names
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator


_DEEPEST: Final = 4
_ENDING: Final = ".py"
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def loaded_by_path(tree: ast.Module) -> dict[str, str]:
    r"""Return the names that stand for modules which are loaded by their paths, as imports would write these.

    The path is a text, or ends with one: ``Path(__file__).with_name("pre.py")``, ``join(here, "pre.py")``.

    Example:
        >>> text = "spec = spec_from_file_location('x', 'tools/pre.py')\nx = module_from_spec(spec)"
        >>> loaded_by_path(ast.parse(text))
        {'x': 'tools.pre'}
    """
    if not any(_is_call(node, "spec_from_file_location", "SourceFileLoader") for node in walked(tree)):
        return {}
    found = _Loading(tree)
    return {name: written for name, value in found.values.items() if (written := found.module(value))}


class _Loading:
    """What names of a source are set to, and its functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, ast.expr] = {}
        self.functions: dict[str, Functions] = {}
        for node in walked(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                self.values.update({target.id: node.value} if isinstance(target, ast.Name) else {})
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions[node.name] = node

    def module(self, value: ast.expr | None, depth: int = 0) -> str:
        """Return the module that an expression is, or nothing."""
        path = self._path(value, depth)
        return _as_import(self._text(path, 0)) if path is not None else ""

    def _path(self, value: ast.expr | None, depth: int) -> ast.expr | None:
        """Return the path of the file that an expression is loaded from."""
        if depth > _DEEPEST or value is None:
            return None
        if isinstance(value, ast.Name):
            return self._path(self.values.get(value.id), depth + 1)
        if not isinstance(value, ast.Call):
            return None
        if _is_call(value, "module_from_spec"):
            return self._spec(value.args[0] if value.args else None, depth)
        if _is_call(value, "load_module") and isinstance(value.func, ast.Attribute):
            return self._spec(value.func.value, depth)
        function = self.functions.get(value.func.id) if isinstance(value.func, ast.Name) else None
        if function is None:
            return None
        path = next((p for each in _returned(function) if (p := self._path(each, depth + 1))), None)
        return _given(function, value, path)

    def _spec(self, value: ast.expr | None, depth: int) -> ast.expr | None:
        """Return the path that a spec, or a loader, is made of."""
        if isinstance(value, ast.Name) and depth <= _DEEPEST:
            return self._spec(self.values.get(value.id), depth + 1)
        if not isinstance(value, ast.Call) or not _is_call(
            value, "spec_from_file_location", "SourceFileLoader"
        ):
            return None
        named = (each.value for each in value.keywords if each.arg in {"location", "path"})
        return value.args[1] if len(value.args) > 1 else next(named, None)

    def _text(self, path: ast.expr, depth: int) -> str:
        """Return the text with which a path ends."""
        texts = [n for n in ast.walk(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        ends = [str(each.value) for each in texts if str(each.value).endswith(_ENDING)]
        if ends or depth > _DEEPEST:
            return ends[-1] if ends else ""
        names = (self.values.get(n.id) for n in ast.walk(path) if isinstance(n, ast.Name))
        return next(
            (text for each in names if each is not None and (text := self._text(each, depth + 1))), ""
        )


def _returned(function: Functions) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _given(function: Functions, call: ast.Call, path: ast.expr | None) -> ast.expr | None:
    """Return the path, which a call may give to the function that loads it."""
    order = placed_names(function)
    names = {each.id for each in ast.walk(path) if isinstance(each, ast.Name)} if path is not None else set()
    given = (given_at(call, number, name) for number, name in enumerate(order) if name in names)
    return next((each for each in given if each is not None), path)


def _is_call(node: ast.AST | None, *names: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return last in names


def _as_import(text: str) -> str:
    """Return a path as an import writes it, as far as its last folders can be names.

    Example:
        >>> _as_import("../my-tools/steps/pre.py"), _as_import("")
        ('steps.pre', '')
    """
    parts: list[str] = []
    for part in reversed(text.removesuffix(_ENDING).split("/")):
        if not part.isidentifier():
            break
        parts.insert(0, part)
    return ".".join(parts)
