"""Methods that a loop calls on objects of which nothing is seen: ``for each in hooks: each.on_end(self)``.

They may be any methods of the project that have this name, and take as much as they are given.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import dotted


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Place, Project


_METHOD: Final = re.compile(r"^[ \t]+(?:async[ \t]+)?def[ \t]+(\w+)\(", re.MULTILINE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Of objects of Python and of torch, which such a loop goes through as well.
_OF_OTHERS: Final = frozenset(
    {
        *(name for kind in (dict, list, set, str) for name in dir(kind)),
        *(
            "apply",
            "backward",
            "cuda",
            "eval",
            "forward",
            "load_state_dict",
            "named_parameters",
            "parameters",
        ),
        *("requires_grad_", "state_dict", "step", "to", "train", "zero_grad"),
    }
)
# More of a name are no family of callbacks.
_MOST: Final = 40


@dataclass(eq=False)
class DispatchedMethods:
    """Answers which methods of a project a loop may call. Reads only."""

    project: Project

    @functools.cached_property
    def _homes(self) -> Mapping[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path, text in self.project.texts.items():
            for name in dict.fromkeys(_METHOD.findall(text)):
                found.setdefault(name, []).append(path)
        return found

    def of(self, call: ast.Call, place: Place) -> Iterator[Definition]:
        """Yield the methods that a call may run, if it is one of what a loop goes through."""
        func = call.func
        is_one = isinstance(func, ast.Attribute) and _is_gone_through(func.value, place)
        if not isinstance(func, ast.Attribute) or not is_one or func.attr in _OF_OTHERS:
            return
        found = [each for each in self._named(func.attr) if _takes(each, call)]
        yield from found if len(found) <= _MOST else ()

    def _named(self, name: str) -> Iterator[Definition]:
        for module in filter(None, map(self.project.module, self._homes.get(name, ()))):
            for each in module.definitions.values():
                is_its = each.owner is not None and each.name.rpartition(".")[2] == name
                if is_its and isinstance(each.node, _FUNCTIONS):
                    yield each


def _is_gone_through(node: ast.expr, place: Place) -> bool:
    text = dotted(node)
    loops = (each for each in place.loops if isinstance(each, (ast.For, ast.AsyncFor)))
    targets = (
        each.target.elts if isinstance(each.target, (ast.Tuple, ast.List)) else [each.target]
        for each in loops
    )
    return text is not None and any(dotted(each) == text for parts in targets for each in parts)


def _takes(definition: Definition, call: ast.Call) -> bool:
    """Tell whether a method has a place for each thing that a call gives."""
    node = definition.node
    if not isinstance(node, _FUNCTIONS) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return isinstance(node, _FUNCTIONS)
    places = [*node.args.posonlyargs, *node.args.args][1:]  # without `self`
    names = {each.arg for each in (*places, *node.args.kwonlyargs)}
    fits = node.args.vararg is not None or len(call.args) <= len(places)
    return fits and (
        node.args.kwarg is not None or all(each.arg in names for each in call.keywords if each.arg)
    )
