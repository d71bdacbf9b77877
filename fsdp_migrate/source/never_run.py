"""Statements of a project's files that never run, or never with FSDP1's class.

What a source by itself shows of it, by the same rules, stands in :mod:`fsdp_migrate.source.python.never_run`.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.sure_imports import MISSING, is_fsdp2s, is_sure, may_miss
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
        return may_miss(text, [] if written is None else [f"{written}.{rest}" if rest else written])

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
            if _is_xlas(each):
                found.update(self._names_of(each))
        for each in tries:
            if _is_plain(each.body) and _is_fsdp2s(each):
                found.update(dict.fromkeys(dict(self._names_of(each)), True))
        return found

    def _names_of(self, node: ast.Try) -> Iterator[tuple[str, object]]:
        """Yield the names that a ``try`` binds, each with what it is else: one of None and False."""
        made = dict(_bound(node.body))
        elsewhere: dict[str, list[object]] = {}
        handled = {id(e) for handler in node.handlers for e in ast.walk(handler)}
        own = {id(each) for part in node.body for each in ast.walk(part)}
        for each in walked(self.tree):
            is_early = id(each) in handled or getattr(each, "lineno", 0) < node.lineno
            for name, value in _bound_by(each) if id(each) not in own else ():
                elsewhere.setdefault(name, []).append(value if is_early else ...)
        for name, value in made.items():
            others = elsewhere.get(name, [])
            if value is True and others and all(each is others[0] for each in others):
                yield from ((name, each) for each in others[:1] if each is None or each is False)

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


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, object]]:
    for part in body:
        for each in ast.walk(part):
            yield from _bound_by(each)


def _bound_by(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the names that a node binds: to True what it imports, else the constant, or ``...``."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0], True) for alias in node.names)
    elif isinstance(node, ast.Assign):
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        yield from ((t.id, value) for t in node.targets if isinstance(t, ast.Name))
        rest = (t for t in node.targets if not isinstance(t, ast.Name))
        yield from ((n.id, ...) for t in rest for n in ast.walk(t) if isinstance(n, ast.Name))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, ...
    elif isinstance(node, ast.arg):
        yield node.arg, ...
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For)):
        yield from ((n.id, ...) for n in ast.walk(node.target) if isinstance(n, ast.Name))
    elif isinstance(node, ast.Global):
        yield from ((name, ...) for name in node.names)


def _is_fsdp2s(node: ast.Try) -> bool:
    """Tell whether a ``try`` imports FSDP2's names, and nothing that a torch may lack."""
    brought = list(_imports(node.body))
    is_sures = any(is_fsdp2s(*each) for each in brought) and all(is_sure(*each) for each in brought)
    return is_sures and not any(isinstance(e, ast.Raise) for part in node.body for e in ast.walk(part))


def _is_xlas(node: ast.Try) -> bool:
    """Tell whether a name is the class of torch_xla's or, where that is missing, torch's."""
    own, other = (
        {alias.asname or alias.name: f"{e.module}.{alias.name}" for e in body for alias in e.names}
        for body in (_from(node.body), _from(part for h in node.handlers for part in h.body))
    )
    return any(
        own.get(name, "").startswith("torch_xla.") and catalog.fsdp1_name(known) == catalog.FSDP
        for name, known in other.items()
    )


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
