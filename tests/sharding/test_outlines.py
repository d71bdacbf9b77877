"""What an outline of a model says of its FSDP1 units, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.rank_sources import ARGUMENTS, POLICY
from tests.loading.compiled_bodies import compiled
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


def test_names_are_those_without_wrappers() -> None:
    net = RankNet()
    wanted = outline_model(net, {**POLICY, "use_orig_params": True})
    assert wanted.units
    blocks = net.blocks
    blocks[0] = compiled(blocks[0])
    blocks[1] = checkpoint_wrapper(blocks[1])
    whole = compiled(net)
    for model in (net, whole):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        found = outline_model(model, {**POLICY, "use_orig_params": True}, optimizer=optimizer)
        assert replace(found, groups=None) == wanted
        assert found.groups == (tuple(wanted.parameters),)
