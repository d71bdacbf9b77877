"""Imports of FSDP1's: those that nothing uses any more go away, those that nothing ever used stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python import imports
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "import"
CODES = ("FM329",)

_GOES = "removed: nothing uses it any more"
_STAYS = "stays: nothing here uses it, but others may import it from here"


def find(source: Source, found: Iterable[tuple[str, Found]]) -> Iterator[Found]:
    """Find imports that are removed, given what the other rules have found, and those without a use."""
    gone = imports.gone(use for _, use in found)
    for node, name in imports.unneeded(source, gone):
        yield Found("FM329", imports.alias_of(node, name) or node, _GOES, "rewritten")
    loads = {load.value for load in source.loads}
    for scope in set(source.index.scopes.values()):
        for name, bindings in scope.bindings.items():
            for binding in bindings:
                fsdp1 = binding.qualified is not None and catalog.fsdp1_name(binding.qualified) is not None
                if fsdp1 and name not in loads:
                    yield Found("FM329", imports.alias_of(binding.node, name) or binding.node, _STAYS, "kept")
