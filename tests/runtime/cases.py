"""Runs of one body for several cases, and what is asserted of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.torch_compat import fsdp2
from tests.rank_bodies import runtime
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


class Cases:
    """Runs of one body, all on the same ranks, which are started when the first is asked for."""

    def __init__(self, body: Callable[..., Any], cases: list[tuple[Any, ...]]) -> None:
        self.body = body
        self.cases = cases

    @functools.cached_property
    def ranks(self) -> list[list[Any]]:
        return run_ranks(runtime.each, self.body, self.cases, timeout=400)

    def of(self, *case: Any) -> list[Any]:
        """Return what each rank found in a case."""
        index = self.cases.index(case)
        return [rank[index] for rank in self.ranks]


def is_refused(found: Any) -> bool:
    """Tell whether this torch cannot ignore parameters, and then assert that it says so."""
    if not fsdp2.HAS_IGNORED_PARAMS:
        assert found == (
            "`ignored_modules` needs torch 2.7 or later, whose fully_shard can ignore parameters."
        )
    return not fsdp2.HAS_IGNORED_PARAMS
