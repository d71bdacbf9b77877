"""What an outline of a model says of its FSDP1 units, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.rank_sources import ARGUMENTS, POLICY
from tests.rank_bodies.flat_sources import (
    TiedApart,
)
from tests.rank_bodies.sources import RankNet


def test_what_is_not_recomputed_is_said() -> None:
    with pytest.raises(
        ModelError, match=r"in different FSDP1 units\. With `use_orig_params=True` FSDP1 cannot"
    ):
        outline_model(TiedApart(), {"auto_wrap_policy": "Linear", "use_orig_params": True})
    turned = nn.Linear(3, 2)
    turned.weight = nn.Parameter(torch.ones(3, 2).t())
    with pytest.raises(ModelError, match="not contiguous"):
        outline_model(turned, {})


def test_numbers_are_those_of_the_wrapped_model() -> None:
    outline = outline_model(RankNet(), {**POLICY, "ignored_states": ["gain"]})
    assert outline.numbered == ("gain", "", "blocks.0", "blocks.1")
    assert outline.aliases == {"head.out.weight": "embed.weight"}
    outline = outline_model(RankNet(), {**ARGUMENTS["plain"], "ignored_states": ["gain"]})
    assert outline.numbered == tuple(outline.parameters)
