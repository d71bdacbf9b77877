"""Where Accelerate runs another strategy than FSDP, over a project's files: by a test, or by what it chooses.

What a source by itself shows of it stands in :mod:`fsdp_migrate.source.python.chosen_functions`.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import fsdp_said


if TYPE_CHECKING:
    from fsdp_migrate.source.project import Place


_ENGINE: Final = re.compile(r"(?:backend|engine|launcher|parallel\w*|strategy)['\"\]]*$")


def is_of_other_launch(place: Place) -> bool:
    """Tell whether a place is reached only where Accelerate does not run FSDP."""
    if any(_is_off(each.test, truth=each.truth) for each in place.asked):
        return True
    owner, _, name = place.scope.rpartition(".")
    return bool(owner) and name in _chosen_methods(place.module.tree)


def _is_off(test: ast.expr, *, truth: bool) -> bool:
    text = ast.unparse(test)
    if not any(word in text for word in ("istributed", "is_fsdp", "deepspeed_enabled")):
        return False
    return fsdp_said(cst.parse_expression(text), truth=truth) is False


def is_of_other_engine(place: Place) -> bool:
    """Tell whether a place is reached only where a project's own setting names another engine than FSDP."""
    return any(_is_other(each.test, truth=each.truth) for each in place.asked)


def _is_other(test: ast.expr, *, truth: bool) -> bool:
    """Tell so of ``info["engine"] == "fsdp"`` that is false; another word may say how to shard as well."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    asked, word, operator = ast.unparse(test.left).lower(), test.comparators[0], test.ops[0]
    is_fsdps = isinstance(word, ast.Constant) and word.value in {"fsdp", "torch_fsdp"}
    is_equal = truth if isinstance(operator, ast.Eq) else not truth
    return (
        is_fsdps
        and isinstance(operator, (ast.Eq, ast.NotEq))
        and not is_equal
        and _ENGINE.search(asked) is not None
    )


@functools.lru_cache(maxsize=64)
def _chosen_methods(tree: ast.Module) -> frozenset[str]:
    """Return the private methods that are called, or handed on, in the branches of other launches alone."""
    seen = _Seen()
    seen.visit(tree)
    once = {name for name in seen.places if seen.made.count(name) == 1 and name not in seen.texts}
    return frozenset(name for name in once if all(seen.places[name]))


class _Seen(ast.NodeVisitor):
    """Notes for each private name whether the places that have it are those of other launches."""

    def __init__(self) -> None:
        self.places: dict[str, list[bool]] = {}
        self.made: list[str] = []
        self.texts: set[str] = set()
        self._is_off = False
        self._own = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self._is_off, self._own
        self.made.append(node.name)
        self._is_off, self._own = False, node.name
        self.generic_visit(node)
        self._is_off, self._own = before

    def visit_If(self, node: ast.If) -> None:
        before = self._is_off
        self.visit(node.test)
        for body, truth in ((node.body, True), (node.orelse, False)):
            self._is_off = before or _is_off(node.test, truth=truth)
            for each in body:
                self.visit(each)
        self._is_off = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr != self._own:
            self.places.setdefault(node.attr, []).append(self._is_off)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.add(node.value)
