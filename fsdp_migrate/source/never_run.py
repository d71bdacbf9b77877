"""Statements of a project's files that never run, or never with FSDP1's class.

What a source by itself shows of it, by the same rules, stands in :mod:`fsdp_migrate.source.python.never_run`.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.bound_names import STAR, names_bound
from fsdp_migrate.source.python.sure_imports import MISSING, is_fsdp2s, is_sure, may_miss
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.source.python.bound_names import Bound


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_CONSTANTS: Final = (True, False, None)


@dataclass(eq=False)
class NeverRun:
    """Answers which statements of a file never run with a model of FSDP1's. Reads only."""

    tree: ast.Module
    imports: Mapping[str, str]
    """What names are imported for, as it is written."""
    _leaving: dict[ast.AST, bool] = field(default_factory=dict, repr=False)

    def below_leaving(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block that are never come to."""
        for place, each in enumerate(body):
            if self._leaves(each):
                return body[place + 1 :]
        return []

    def side(self, node: ast.stmt) -> str | None:
        """Return the branch of a choice that is never taken: ``body`` or ``orelse``."""
        said = self._said(node.test) if isinstance(node, ast.If) and self._known else None
        return None if said is None else "orelse" if said else "body"

    def handlers(self, node: ast.Try) -> list[ast.ExceptHandler]:
        """Return the handlers of a ``try`` that never run."""
        if not node.handlers or not _is_fsdp2s(node):
            return []
        is_plain = _is_plain(node.body)
        calls = (each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Call))
        is_calm = is_plain or not any(map(self._may_miss, calls))
        return [each for each in node.handlers if is_plain or (is_calm and _is_of_missing(each))]

    def _may_miss(self, call: ast.Call) -> bool:
        text = dotted(call.func)
        root, _, rest = (text or "").partition(".")
        written = self.imports.get(root)
        known = [] if written is None else [f"{written}.{rest}" if rest else written]
        given = {last_name(each) for each in every_argument(call)}
        if not given.isdisjoint(self._functions):
            return True  # what is called may call what it is given
        return may_miss(text, known, self._functions | self._classes)

    @functools.cached_property
    def _functions(self) -> frozenset[str]:
        made = (each for each in walked(self.tree) if isinstance(each, _FUNCTIONS))
        return frozenset(each.name for each in made)

    @functools.cached_property
    def _classes(self) -> frozenset[str]:
        made = (each for each in walked(self.tree) if isinstance(each, ast.ClassDef))
        return frozenset(each.name for each in made)

    def _leaves(self, node: ast.AST) -> bool:
        """Tell whether a statement always ends by leaving the block around it."""
        if isinstance(node, (ast.If, ast.Try)):
            if node not in self._leaving:
                self._leaving[node] = self._always_leaves(node)
            return self._leaving[node]
        return isinstance(node, _LEAVES)

    def _always_leaves(self, node: ast.If | ast.Try) -> bool:
        if isinstance(node, ast.If):
            never = self.side(node)
            sides = [getattr(node, side) for side in ("body", "orelse") if side != never]
            return all(any(map(self._leaves, side)) for side in sides)
        if any(map(self._leaves, node.finalbody)):
            return True
        dead = self.handlers(node)
        caught = (each.body for each in node.handlers if each not in dead)
        is_left = any(map(self._leaves, (*node.body, *node.orelse)))
        return is_left and all(any(map(self._leaves, body)) for body in caught)

    # Names of the module that say what was found.

    @functools.cached_property
    def _known(self) -> dict[str, object]:
        """What names of the module are where FSDP is torch's: true, or else None or False."""
        tries = [each for each in self.tree.body if isinstance(each, ast.Try) and each.handlers]
        found: dict[str, object] = {}
        for each in tries:
            if self._is_xlas(each):
                found.update(self._names_of(each))
        for each in tries:
            if _is_plain(each.body) and _is_fsdp2s(each):
                found.update(dict.fromkeys(dict(self._names_of(each)), True))
        return found

    def _names_of(self, node: ast.Try) -> Iterator[tuple[str, object]]:
        """Yield the names that a ``try`` binds, each with what it is else: one of None and False."""
        for name, places in self._places(node).items():
            made = [value for place, value in places if place == "body"]
            others = [value for place, value in places if place in {"before", "handler"}]
            is_known = bool(made and others) and all(place != "later" for place, _ in places)
            if not is_known or not all(each is others[0] for each in others):
                continue
            if all(each is True for each in made) and (others[0] is None or others[0] is False):
                yield name, others[0]

    def _places(self, node: ast.Try) -> dict[str, list[tuple[str, object]]]:
        """Return where names are bound, and to what; nothing where ``import *`` may bind any of them."""
        own = {id(each) for part in node.body for each in ast.walk(part)}
        handled = {id(each) for handler in node.handlers for each in ast.walk(handler)}
        found: dict[str, list[tuple[str, object]]] = {}
        for each in self._bound:
            place = "body" if id(each.node) in own else "handler" if id(each.node) in handled else "before"
            if each.is_inner or (place == "before" and each.line >= node.lineno):
                place = "later"  # what stands in a function is run when it is called
            if each.name == STAR and place != "before":
                return {}
            found.setdefault(each.name, []).append((place, each.value))
        return found

    @functools.cached_property
    def _bound(self) -> list[Bound]:
        return list(names_bound(self.tree))

    def _is_xlas(self, node: ast.Try) -> bool:
        """Tell whether a name is the class of torch_xla's or, where that is missing, torch's."""
        handled = _from(each for handler in node.handlers for each in handler.body)
        own, other = _brought(_from(node.body)), _brought(handled)
        either = [name for name, known in other.items() if _is_torchs(known) and name in own]
        if not any(own[name].startswith("torch_xla.") for name in either):
            return False
        places = self._places(node)
        found = [sorted(place for place, _ in places.get(name, ())) for name in either]
        return all(each == ["body", "handler"] for each in found) and not self._is_torchs_beside(handled)

    def _is_torchs_beside(self, handled: list[ast.ImportFrom]) -> bool:
        """Tell whether torch's class is had in another way than by a ``try``'s handlers."""
        nodes = list(walked(self.tree))
        if any(isinstance(each, ast.Attribute) and each.attr == catalog.FSDP for each in nodes):
            return True
        others = [each for each in nodes if isinstance(each, ast.ImportFrom) and each not in handled]
        return any(map(_is_torchs, _brought(others).values()))

    def _said(self, test: ast.expr) -> bool | None:
        """Return whether a test is true, by what is known of the names in it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            said = self._said(test.operand)
            return None if said is None else not said
        if isinstance(test, ast.BoolOp):
            sides, decides = [self._said(each) for each in test.values], isinstance(test.op, ast.Or)
            return decides if decides in sides else None if None in sides else not decides
        if isinstance(test, ast.Name):
            return bool(self._known[test.id]) if test.id in self._known else None
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
            return None
        other, operator = test.comparators[0], test.ops[0]
        is_none = isinstance(other, ast.Constant) and other.value is None
        if not is_none or test.left.id not in self._known or not isinstance(operator, (ast.Is, ast.IsNot)):
            return None
        return (self._known[test.left.id] is None) is isinstance(operator, ast.Is)


def imports_fsdp2(tree: ast.Module) -> bool:
    """Tell whether a ``try`` of a file imports FSDP2's names, and so never comes to its handlers."""
    return any(isinstance(each, ast.Try) and _is_fsdp2s(each) for each in walked(tree))


def _is_fsdp2s(node: ast.Try) -> bool:
    """Tell whether a ``try`` imports FSDP2's names, and nothing that a torch may lack."""
    brought = list(_imports(node.body))
    is_sures = any(is_fsdp2s(*each) for each in brought) and all(is_sure(*each) for each in brought)
    return is_sures and not any(isinstance(e, ast.Raise) for part in node.body for e in ast.walk(part))


def _is_torchs(name: str) -> bool:
    return catalog.fsdp1_name(name) == catalog.FSDP


def _brought(imports: Iterable[ast.ImportFrom]) -> dict[str, str]:
    """Return the names that imports bring, each with what it stands for."""
    each = ((alias, node.module) for node in imports for alias in node.names)
    return {alias.asname or alias.name: f"{module}.{alias.name}" for alias, module in each}


def _from(body: Iterable[ast.stmt]) -> list[ast.ImportFrom]:
    return [each for part in body for each in ast.walk(part) if isinstance(each, ast.ImportFrom)]


def _imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules that a block imports, each with the names of it; none where it is the whole."""
    for part in body:
        for node in ast.walk(part):
            if isinstance(node, ast.ImportFrom):
                yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)


def _is_plain(body: Iterable[ast.stmt]) -> bool:
    """Tell whether a block imports, and sets names to True, False or None, and does nothing else."""
    for each in body:
        value = each.value if isinstance(each, ast.Assign) else None
        is_set = isinstance(value, ast.Constant) and any(value.value is c for c in _CONSTANTS)
        if not is_set and not isinstance(each, (ast.Import, ast.ImportFrom, ast.Pass)):
            return False
    return True


def _is_of_missing(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler catches what a missing import raises, and nothing else."""
    kind = handler.type
    each = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return all(isinstance(part, ast.Name) and part.id in MISSING for part in each)
