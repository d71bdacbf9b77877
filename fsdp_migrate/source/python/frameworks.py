"""The models that frameworks shard: Accelerate, Fabric, Lightning and Hugging Face's Trainer.

What one of these gives may be a sharded model, ``fsdp``, beside which stands by whom: ``by:fabric``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import prepared, shards_by_accelerate
from fsdp_migrate.source.python.fabric_models import set_up, shards_by_fabric


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.python.scopes import Index


BY = "by:"
"""Before the name of the framework, among what an expression may be."""


def by_whom(kinds: Collection[str]) -> str:
    """Return the framework that shards a model, or nothing where the source does.

    Example:
        >>> by_whom({"fsdp", "other", "by:fabric"}), by_whom({"fsdp"})
        ('fabric', '')
    """
    return next((kind.removeprefix(BY) for kind in sorted(kinds) if kind.startswith(BY)), "")


@dataclass(eq=False)
class Frameworks:
    """Answers for one source what the frameworks that it uses shard. Reads only."""

    index: Index
    links: Links

    @functools.cached_property
    def _accelerate(self) -> bool:
        return shards_by_accelerate(self.index)

    @functools.cached_property
    def _fabric(self) -> bool:
        return shards_by_fabric(self.index)

    def of_call(self, call: cst.Call) -> set[str]:
        """Return what a call of a framework's function gives."""
        if not isinstance(call.func, cst.Attribute):
            return set()
        found = prepared(call) if self._accelerate else set()
        return found or (set_up(call) if self._fabric else set())

    def unwraps(self, call: cst.Call) -> cst.BaseExpression | None:
        """Return the model that ``accelerator.unwrap_model(model)`` gives back."""
        is_unwrapped = isinstance(call.func, cst.Attribute) and call.func.attr.value == "unwrap_model"
        return call.args[0].value if is_unwrapped and call.args and self._accelerate else None
