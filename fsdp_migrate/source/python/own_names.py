"""What a name is by the function that binds it: two functions may call different things ``optimizer``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source

Name = tuple[cst.CSTNode | None, str]


def name_of(source: Source, node: cst.BaseExpression) -> Name:
    """Return what a name is told from others by: the function, if that binds it to nothing but what it makes.

    What is given to a function may be what another one made by the same name.
    """
    root = node
    while isinstance(root, (cst.Attribute, cst.Subscript)):
        root = root.value
    known = source.index.scopes.get(root)
    scope = known.find(root.value) if known is not None and isinstance(root, cst.Name) else None
    if scope is None or not isinstance(root, cst.Name) or not isinstance(scope.node, cst.FunctionDef):
        return None, text_of(node)
    is_own = all(each.kind not in {"param", "other"} for each in scope.bindings[root.value])
    return scope.node if is_own else None, text_of(node)


def values_bound(source: Source, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what assignments give to a name, or to one that may be the same in another function."""
    own, text = name_of(source, node)
    for assign in source.assignments:
        same = [each.target for each in assign.targets if text_of(each.target) == text]
        if same and (own is None or name_of(source, same[0])[0] is own):
            yield assign.value
