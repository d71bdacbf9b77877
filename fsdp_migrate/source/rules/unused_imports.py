"""Imports of FSDP1's: those that nothing uses any more go away, those that nothing ever used stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python import imports
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source


NAME = "import"
CODES = ("FM310", "FM317", "FM329")

_GOES = "removed: nothing uses it any more"
_STAYS = "stays: nothing here uses it, but others may import it from here"
_FORMER = "no torch that has FSDP2 has this module: take `{}` out of the import, nothing here uses it."


def find(source: Source, found: Iterable[tuple[str, Found]]) -> Iterator[Found]:
    """Find imports that are removed, given what the other rules have found, and those without a use."""
    gone = imports.gone(use for _, use in found)
    for node, name in imports.unneeded(source, gone):
        yield Found("FM329", imports.alias_of(node, name) or node, _GOES, "rewritten")
    removed = imports.unneeded(source, gone)
    loads = {load.value for load in source.loads}
    for scope in set(source.index.scopes.values()):
        for name, bindings in scope.bindings.items():
            for binding in bindings:
                fsdp1 = None if binding.qualified is None else catalog.fsdp1_name(binding.qualified)
                if fsdp1 is not None and (binding.node, name) not in removed:
                    yield from _of_left(source, binding, name, fsdp1, is_used=name in loads)


def _of_left(source: Source, binding: Binding, name: str, fsdp1: str, *, is_used: bool) -> Iterator[Found]:
    """Find an import that is left: one of what torch no longer has would raise, used or not."""
    alias = imports.alias_of(binding.node, name)
    is_tried = imports.is_tried(source, binding.node)
    if fsdp1 == catalog.FORMER_SIZE_POLICY and alias is not None and not is_tried:
        becomes = f"{catalog.SIZE_POLICY}, what torch calls it since 1.12"
        yield Found("FM310", alias, becomes, "rewritten", (Replace(alias, _of_today),))
    elif not is_used and not is_tried and _is_former(binding.node):
        yield Found("FM317", alias or binding.node, _FORMER.format(name), "commented", is_of_its_own=True)
    elif not is_used:
        yield Found("FM329", alias or binding.node, _STAYS, "kept")


def _of_today(alias: cst.ImportAlias) -> cst.ImportAlias:
    """Return an import of the policy by the name that torch has today, under the name that it had here."""
    kept = alias.asname or cst.AsName(cst.Name(catalog.FORMER_SIZE_POLICY))
    today = cst.Name(catalog.SIZE_POLICY)
    name = alias.name.with_changes(attr=today) if isinstance(alias.name, cst.Attribute) else today
    return alias.with_changes(name=name, asname=kept)


def _is_former(node: cst.CSTNode) -> bool:
    """Tell whether an import is from a module that torch no longer has."""
    home = dotted(node.module) if isinstance(node, cst.ImportFrom) and node.module is not None else None
    head, _, module = (home or "").rpartition(".")
    return head == catalog.PACKAGE and module in catalog.FORMER_MODULES
