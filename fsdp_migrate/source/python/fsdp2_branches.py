"""Branches in which FSDP2 shards a model that is plain until then."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.makers import is_partial_of
from fsdp_migrate.source.python.nodes import last_name, text_of
from fsdp_migrate.source.python.wrappers import FSDP2


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


@dataclass(eq=False)
class ShardedByFSDP2:
    """Answers what FSDP2's functions are given in a source. Reads only."""

    index: Index

    def is_given(self, node: cst.CSTNode) -> bool:
        """Tell whether FSDP2 is given the same model in a branch around, where it is plain until then."""
        for call in self._calls:
            if text_of(call.args[0].value) == text_of(node):
                blocks = (a for a in self.index.ancestors(call) if isinstance(a, cst.IndentedBlock))
                block = next(blocks, None)
                if block is not None and self._is_of_branch(block) and block in {*self.index.ancestors(node)}:
                    return True
        return False

    def _is_of_branch(self, block: cst.IndentedBlock) -> bool:
        """Tell whether a block is a branch, or that of a loop in one: ``if new: for model in models``."""
        around: cst.CSTNode = self.index.parents[block]
        while isinstance(around, (cst.For, cst.While)):
            around = self.index.parents[self.index.parents[around]]
        return isinstance(around, (cst.If, cst.Else))

    @functools.cached_property
    def _calls(self) -> list[cst.Call]:
        calls = [cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ())]
        return [call for call in calls if call.args and self._is_its(call.func)]

    def _is_its(self, func: cst.BaseExpression) -> bool:
        """Tell whether a function shards by FSDP2: torch's, a partial of it, a project's ``apply_fsdp2``."""
        if last_name(func) in catalog.FSDP2_FUNCTIONS:
            return True
        return bool(self.index.qualified(func) & FSDP2) or is_partial_of(self.index, func, FSDP2)
