"""The models that frameworks shard: Accelerate, Fabric, Lightning and Hugging Face's Trainer.

What one of these gives may be a sharded model, ``fsdp``, beside which stands by whom: ``by:fabric``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import (
    ACCELERATE,
    asks_for_fsdp,
    fsdp_said,
    is_list_of_models,
    prepared,
    shards_by_accelerate,
)
from fsdp_migrate.source.python.fabric_models import set_up, shards_by_fabric
from fsdp_migrate.source.python.held import EACH, put
from fsdp_migrate.source.python.lightning_models import (
    is_trainers_model,
    is_within_a_module,
    trains_by_fsdp1,
)
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.trainer_models import HFTrainers


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.source.python.guards import Guards
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
    guards: Guards

    @functools.cached_property
    def _accelerate(self) -> bool:
        return "accelerate" in self.links.frameworks or shards_by_accelerate(self.index)

    @functools.cached_property
    def _asks_accelerate(self) -> bool:
        return asks_for_fsdp(self.index)

    @functools.cached_property
    def _fabric(self) -> bool:
        return "fabric" in self.links.frameworks or shards_by_fabric(self.index)

    @functools.cached_property
    def _lightning(self) -> bool:
        return trains_by_fsdp1(self.index, is_told=self.links.is_trained)

    @functools.cached_property
    def _trainers(self) -> HFTrainers:
        return HFTrainers(self.index)

    def of_call(self, call: cst.Call) -> set[str]:
        """Return what a call of a framework's function gives."""
        if not isinstance(call.func, cst.Attribute):
            return set()
        found = prepared(call) if self._accelerate or self._asks_accelerate else set()
        return found or (set_up(call) if self._fabric else set())

    def of_name(self, node: cst.Name | cst.Attribute) -> set[str]:
        """Return what a name is of which the source itself says nothing: the model of a Trainer."""
        if isinstance(node, cst.Attribute) and is_list_of_models(node):
            kinds = {"fsdp", "other", ACCELERATE}
            is_asked = self._accelerate or self._asks_accelerate
            return put(EACH, kinds) if is_asked and not self.is_elsewhere(kinds, node) else set()
        if self._lightning:
            if isinstance(node, cst.Attribute) and is_trainers_model(text_of(node)):
                return {"fsdp", "other"}
            if is_within_a_module(self.index, node):
                return {"fsdp", "other", f"{BY}lightning"}
        return {"fsdp", "other", f"{BY}transformers"} if self._trainers.is_theirs(node) else set()

    def is_elsewhere(self, kinds: set[str], node: cst.CSTNode) -> bool:
        """Tell whether a model of Accelerate's is asked about, and stands where none of FSDP's comes."""
        if ACCELERATE not in kinds or self._accelerate:
            return False
        return not any(fsdp_said(test, truth=truth) for test, truth in self.guards.facts(node))

    def unwraps(self, call: cst.Call) -> cst.BaseExpression | None:
        """Return the model that ``accelerator.unwrap_model(model)`` gives back."""
        is_unwrapped = isinstance(call.func, cst.Attribute) and call.func.attr.value == "unwrap_model"
        is_theirs = is_unwrapped and call.args and (self._accelerate or self._asks_accelerate)
        return call.args[0].value if is_theirs else None
