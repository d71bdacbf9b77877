"""Ranks that make their models by seeds of their own, and what FSDP1 and ours put together of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import prepare_fully_shard, shard_plan
from tests.rank_bodies.parity import full


def _model(kind: str) -> nn.Module:
    rank = dist.get_rank()
    torch.manual_seed(rank if kind in {"own seeds", "sent"} else 0)
    last = nn.Linear(5, 3, bias=False)
    if kind == "one value":
        with torch.no_grad():
            last.weight[-1, -1] += rank
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), last)


def _codes(model: nn.Module) -> list[str]:
    return [each.message for each in shard_plan(model).findings if each.code == "FM132"]


def prepared(kind: str) -> tuple[list[str], list[torch.Tensor], list[torch.Tensor]]:
    """Return what is said of a model, and its parameters whole: of ours and of FSDP1's."""
    options: dict[str, Any] = {"device_id": torch.device("cpu")}
    ours = prepare_fully_shard(_model(kind), {**options, "sync_module_states": kind == "sent"})
    theirs = FSDP(_model(kind), **options, use_orig_params=True)
    with FSDP.summon_full_params(theirs):
        whole = [each.detach().clone() for each in theirs.parameters()]
    return _codes(ours), [full(each) for each in ours.parameters()], whole


def ignored() -> list[str]:
    """Return what is said where the ranks differ in what is ignored alone."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 5), nn.Linear(5, 3)
    with torch.no_grad():
        second.weight.fill_(dist.get_rank())
    options = {"device_id": torch.device("cpu"), "ignored_modules": [second]}
    return _codes(prepare_fully_shard(nn.Sequential(first, second), options))


def laid_out() -> list[str]:
    """Return what is said of parameters that lie otherwise, are empty, or have no dimensions."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential()
    model.turned = nn.Parameter(torch.randn(5, 7).t())
    model.empty = nn.Parameter(torch.empty(0, 3))
    model.conv = nn.Conv2d(3, 4, 2)
    model.conv.weight.data = model.conv.weight.data.contiguous(memory_format=torch.channels_last)
    return _codes(prepare_fully_shard(model, {"device_id": torch.device("cpu")}))
