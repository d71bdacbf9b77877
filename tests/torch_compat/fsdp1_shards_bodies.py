"""FSDP1 in bf16, trained while its parameters are looked at, and by itself."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.parity import watching
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.torch_compat.fsdp1_shards import named_whole_parameters
from tests.models import Block, Net, batch, loss_of


if TYPE_CHECKING:
    from collections.abc import Iterator


CPU = torch.device("cpu")
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"]
BETWEEN = ["nothing", "an evaluation", "a forward with gradients"]


def beside_watching(between: str, strategy: str, is_flat: bool, offloads: bool) -> list[Any]:
    """Return losses and last parameters of a run by itself, and of one whose steps are watched.

    Between backward and the optimizer's step there may be another forward.
    """
    os.environ[watching.STEPS] = "9"
    runs = []
    for is_watched in (False, True):
        with _on_cpu():
            model = _in_bf16(Net(), strategy, is_flat, offloads)
            runs.append(_trained(model, between, is_watched=is_watched))
    return runs


def _trained(model: nn.Module, between: str, *, is_watched: bool) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if is_watched:
        optimizer.register_step_pre_hook(watching.before_step)
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: watching.after_step(optimizer))
    losses = []
    for step in range(4):
        loss = loss_of(model, batch(step, dist.get_rank()))
        loss.backward()
        if between == "an evaluation":
            with torch.no_grad():
                losses.append(loss_of(model, batch(9, 0)).item())
        elif between != "nothing":
            losses.append(loss_of(model, batch(9, 0)).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, _beside(model)


def both_ways(strategy: str, is_flat: bool, offloads: bool) -> dict[str, list[Any]]:
    """Return the parameters as ``summon_full_params`` shows them, and as they are gathered beside FSDP1."""
    net = Net(tied=True)
    net.add_module("frozen", nn.Linear(2, 3).requires_grad_(requires_grad=False))
    with _on_cpu():
        model = _in_bf16(net, strategy, is_flat, offloads, ignored_modules=[net.frozen])
        # Their own first: FSDP1 makes ready for its first forward where it summons.
        found = {"before the first forward": [_beside(model), _summoned(model)]}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model, batch(0, dist.get_rank())).backward()
        optimizer.step()
        found["after a step"] = [_beside(model), _summoned(model)]
        # Under NO_SHARD FSDP1 of torch 2.7 fails by itself then: it takes flat data alone.
        if not is_flat and strategy != "NO_SHARD":
            for param in model.parameters():
                param.data = param.data * 2
            found["with other data"] = [_beside(model), _summoned(model)]
    return found


def before_backward(strategy: str, is_flat: bool) -> list[Any]:
    """Return gradients of FSDP1 by itself, and of a run whose parameters were looked at before backward."""
    runs = []
    for is_seen in (False, True):
        model = _in_bf16(Net(), strategy, is_flat, offloads=False)
        before = _beside(model)
        loss = loss_of(model, batch(0, dist.get_rank()))
        shown = _beside(model) if is_seen else before
        loss.backward()
        grads = {
            f"{place}": each.grad for place, each in enumerate(model.parameters()) if each.grad is not None
        }
        runs.append((grads, before, shown))
    return runs


def _beside(model: nn.Module) -> dict[str, torch.Tensor]:
    return {clean_name(name): each for name, each in named_whole_parameters(model, _copy)}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _summoned(model: nn.Module) -> dict[str, torch.Tensor]:
    with FSDP.summon_full_params(model, writeback=False):
        named = model.named_parameters(remove_duplicate=False)
        return {clean_name(name): _copy(each) for name, each in named}


def _in_bf16(net: nn.Module, strategy: str, is_flat: bool, offloads: bool, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for param in net.parameters():
            param.normal_()
    return FSDP(
        net,
        process_group=_hybrid_groups() if strategy == "HYBRID_SHARD" else None,
        auto_wrap_policy=ModuleWrapPolicy({Block, nn.LayerNorm}),
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        cpu_offload=CPUOffload(offload_params=offloads),
        use_orig_params=not is_flat,
        device_id=CPU,
        **more,
    )


def _hybrid_groups() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return a group to shard over, which is all ranks, and one of a single replica."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return dist.new_group(), alone[dist.get_rank()]


@contextmanager
def _on_cpu() -> Iterator[None]:
    """Let FSDP1 offload where there is no accelerator: torch can neither pin memory nor wait for a stream."""
    with (
        mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
        mock.patch.object(torch.cpu.Stream, "synchronize", create=True),
    ):
        yield
