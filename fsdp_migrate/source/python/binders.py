"""What statements and expressions bind: names, with what is known of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.noted_assigns import NotedAssign


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index, Scope


def _bind_import(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    assert isinstance(node, cst.Import)
    for alias in node.names:
        full = dotted(alias.name) or ""
        if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
            scope.bind(alias.asname.name.value, "import", node, qualified=full)
        else:
            first = full.split(".")[0]
            scope.bind(first, "import", node, qualified=first)


def _bind_import_from(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    assert isinstance(node, cst.ImportFrom)
    module = "." * len(node.relative) + ((dotted(node.module) or "") if node.module else "")
    if isinstance(node.names, cst.ImportStar):
        index.stars.add(module)
        return
    for alias in node.names:
        name = alias.name.value if isinstance(alias.name, cst.Name) else ""
        bound = alias.asname.name if alias.asname is not None else alias.name
        if isinstance(bound, cst.Name):
            whole = f"{module}.{name}"
            scope.bind(bound.value, "import", node, qualified=index.names.get(whole, whole))


def _bind_definition(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    assert isinstance(node, (cst.FunctionDef, cst.ClassDef))
    scope.bind(node.name.value, "class" if isinstance(node, cst.ClassDef) else "def", node)


def _bind_assign(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    assert isinstance(node, cst.Assign)
    for target in node.targets:
        _bind_target(target.target, node.value, scope)


def _bind_noted(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    index.by_kind.setdefault(cst.Assign, []).append(node)  # whoever goes through assignments means it too
    _bind_assign(index, node, scope)


def _bind_target(
    target: cst.BaseExpression, value: cst.BaseExpression | None, scope: Scope, index: int | None = None
) -> None:
    if isinstance(target, cst.Name):
        scope.bind(target.value, "assign" if value is not None else "other", target, value=value, index=index)
    elif isinstance(target, (cst.Tuple, cst.List)):
        items = value.elements if isinstance(value, (cst.Tuple, cst.List)) and index is None else None
        for place, element in enumerate(target.elements):
            if items is not None and len(items) == len(target.elements):
                _bind_target(element.value, items[place].value, scope)
            else:
                _bind_target(element.value, value if index is None else None, scope, place)


def _bind_other(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    if isinstance(node, (cst.AnnAssign, cst.AugAssign)):
        value = node.value if isinstance(node, cst.AnnAssign) else None
        if value is not None or isinstance(node, cst.AugAssign):
            _bind_target(node.target, value, scope)
    elif isinstance(node, cst.NamedExpr):
        # `:=` binds in the function around a comprehension, not in it.
        while isinstance(scope.node, cst.BaseComp) and scope.parent is not None:
            scope = scope.parent
        _bind_target(node.target, node.value, scope)
    elif isinstance(node, (cst.For, cst.CompFor)):
        _bind_target(node.target, None, scope)
    elif isinstance(node, cst.WithItem) and node.asname is not None:
        _bind_target(node.asname.name, None, scope)
    elif isinstance(node, (cst.ExceptHandler, cst.ExceptStarHandler)) and node.name is not None:
        _bind_target(node.name.name, None, scope)
    elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
        _bind_target(node.name, None, scope)
    elif isinstance(node, cst.MatchMapping) and node.rest is not None:
        _bind_target(node.rest, None, scope)


def _bind_elsewhere(index: Index, node: cst.CSTNode, scope: Scope) -> None:
    assert isinstance(node, (cst.Global, cst.Nonlocal))
    for item in node.names:
        name = item.name.value
        found = scope.parent.find(name) if isinstance(node, cst.Nonlocal) and scope.parent else None
        scope.elsewhere[name] = found or scope.root


BINDERS = {
    cst.Import: _bind_import,
    cst.ImportFrom: _bind_import_from,
    cst.FunctionDef: _bind_definition,
    cst.ClassDef: _bind_definition,
    cst.Assign: _bind_assign,
    NotedAssign: _bind_noted,
    **dict.fromkeys(
        (
            cst.AnnAssign,
            cst.AugAssign,
            cst.NamedExpr,
            cst.For,
            cst.CompFor,
            cst.WithItem,
            cst.ExceptHandler,
            cst.ExceptStarHandler,
            cst.MatchAs,
            cst.MatchMapping,
            cst.MatchStar,
        ),
        _bind_other,
    ),
    cst.Global: _bind_elsewhere,
    cst.Nonlocal: _bind_elsewhere,
}
"""By the type of a node what binds its names in a scope."""
