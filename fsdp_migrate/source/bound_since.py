"""Names of a project's files that are bound anew below the call that sharded in place what they stood for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.project_scopes import scopes_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Module, Place
    from fsdp_migrate.source.project_kinds import ProjectKinds
    from fsdp_migrate.source.project_scopes import Statement
    from fsdp_migrate.source.project_switches import Mark


_ASSIGNS: WeakKeyDictionary[Module, dict[str, list[Statement]]] = WeakKeyDictionary()


def is_bound_since(known: ProjectKinds, mark: Mark, text: str, place: Place) -> bool:
    """Tell whether a name surely stands for something else at a place than what was sharded above.

    ``prepared = FSDP(net)``, ``net = AutoModel.from_pretrained(name)``, ``dump(net)``. What a branch or a
    loop binds is not sure below it. What is made of a sharded model may be one.
    """
    if not mark.is_aside:
        return False
    assigns = _assigns(place.module).get(place.scope, ())
    made = {name for each in assigns if each.place.start == mark.start for name in _targets(each.node)}
    return any(
        mark.start < each.place.start < place.start
        and each.place.blocks == place.blocks[: len(each.place.blocks)]
        and text in _targets(each.node)
        and _is_new(known, each, {text, *made})
        for each in assigns
    )


def _is_new(known: ProjectKinds, statement: Statement, sharded: set[str]) -> bool:
    """Tell whether a statement gives what is made of no sharded model, as far as is seen."""
    value = statement.node.value if isinstance(statement.node, (ast.Assign, ast.AnnAssign)) else None
    if value is None:
        return False
    names = {dotted(each) or "" for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))}
    starts = {name.partition(".")[0] for name in names}
    if names & sharded or starts & {each.partition(".")[0] for each in sharded}:
        return False
    parts = (each for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute, ast.Call)))
    return not any("fsdp" in known.kinds(each, statement.place) for each in parts)


def _targets(node: ast.stmt) -> Iterator[str]:
    for target in targets_of(node):
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from filter(None, map(dotted, parts))


def _assigns(module: Module) -> dict[str, list[Statement]]:
    """Return the assignments of a module by their scopes."""
    if module not in _ASSIGNS:
        found: dict[str, list[Statement]] = {}
        for scope in scopes_of(module):
            for each in scope.statements:
                if isinstance(each.node, (ast.Assign, ast.AnnAssign)):
                    found.setdefault(each.place.scope, []).append(each)
        _ASSIGNS[module] = found
    return _ASSIGNS[module]
