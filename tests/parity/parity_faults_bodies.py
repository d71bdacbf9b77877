"""Compares runs of FSDP1 with prepared ones that have a fault put in on purpose, or none."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from fsdp_migrate.config import FSDP1Config, MixedPrecision
from fsdp_migrate.parity import ParityReport, compare_runs
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat import device_meshes
from tests.models import ConvNet, Net, batch, loss_of
from tests.rank_bodies import checkpoints


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


BLOCKS: dict[str, Any] = {"auto_wrap_policy": "Block", "use_orig_params": True}
LOW = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "bf16"}


class Recomputing(nn.Module):
    """Drops out at random, in a layer that is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)
        self.replays = True

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.first(rows)
        dropped: Any = checkpoint(self._inner, hidden, use_reentrant=False, preserve_rng_state=self.replays)
        out: torch.Tensor = self.last(dropped)
        return out

    def _inner(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(hidden).tanh()
        return out


def _untie(model: Any, config: FSDP1Config) -> nn.Module:
    model.head.out.weight = nn.Parameter(model.embed.weight.detach().clone())
    prepared: nn.Module = prepare_fully_shard(model, config)
    return prepared


def _wrap_otherwise(model: nn.Module, config: FSDP1Config) -> nn.Module:
    return prepare_fully_shard(model, config, auto_wrap_policy={type(model.get_submodule("head"))})


def _reduce_low(model: nn.Module, config: FSDP1Config) -> nn.Module:
    assert config.mixed_precision is not None
    precision = {**config.mixed_precision.model_dump(), "reduce_dtype": "bf16"}
    return prepare_fully_shard(model, config.updated(mixed_precision=MixedPrecision(**precision)))


def _divide_otherwise(model: nn.Module, config: FSDP1Config) -> nn.Module:
    prepared = prepare_fully_shard(model, config)
    if not device_meshes.HAS_GRADIENT_DIVISOR:
        prepared.register_forward_hook(_multiply_gradients)
        return prepared
    units = [each for each in prepared.modules() if isinstance(each, FSDPModule)]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    device_meshes.set_gradient_divisor(units, mesh, 1)
    return prepared


def _multiply_gradients(module: nn.Module, given: Any, out: torch.Tensor) -> None:
    """Make all gradients what another divisor makes them, where torch 2.6 lets nobody choose one."""
    del module, given
    if out.requires_grad:
        out.register_hook(lambda grad: grad * dist.get_world_size())


def _leave_replicas_apart(model: nn.Module, config: FSDP1Config) -> nn.Module:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    alone: DeviceMesh = device_meshes.mesh_of_groups(
        [groups[dist.get_rank()]], "cpu", torch.tensor([dist.get_rank()]), ("d",)
    )
    return prepare_fully_shard(model, config, mesh=alone)


def _cast_no_buffers(model: nn.Module, config: FSDP1Config) -> nn.Module:
    assert config.mixed_precision is not None
    precision = {**config.mixed_precision.model_dump(), "buffer_dtype": None}
    return prepare_fully_shard(model, config.updated(mixed_precision=MixedPrecision(**precision)))


def _replay_others(model: Any, config: FSDP1Config) -> nn.Module:
    model.replays = False
    prepared: nn.Module = prepare_fully_shard(model, config)
    return prepared


def _leave_out(model: nn.Module) -> torch.optim.Optimizer:
    named = model.named_parameters()
    skipped = "head.out.bias" if isinstance(model, FSDPModule) else ""
    return torch.optim.SGD([each for name, each in named if name != skipped], lr=0.3)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


def _tied() -> nn.Module:
    return Net(tied=True)


def _partly_frozen() -> nn.Module:
    model = Net()
    model.blocks[0].requires_grad_(requires_grad=False)
    model.embed.requires_grad_(requires_grad=False)
    return model


def _with_sgd() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Net()
    groups: list[dict[str, Any]] = [
        {"params": list(model.head.parameters()), "lr": 0.1},
        {"params": list(model.blocks.parameters())},
    ]
    return model, torch.optim.SGD(groups, lr=0.3, momentum=0.9)


def _batches(rank: int) -> list[torch.Tensor]:
    return [batch(step, rank) for step in range(2)]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": (Net, BLOCKS, {}),
    "nothing, flat and bf16": (
        _tied,
        {"auto_wrap_policy": "Block", "mixed_precision": LOW},
        {"optimizer": _sgd},
    ),
    "nothing, recomputed": (Recomputing, {"use_orig_params": True}, {}),
    "gradients that nobody clears": (_with_sgd, {**BLOCKS, "sharding_strategy": "NO_SHARD"}, {}),
    "nothing, partly frozen": (_partly_frozen, BLOCKS, {}),
    "nothing, BatchNorm": (
        ConvNet,
        {"auto_wrap_policy": "Sequential", "mixed_precision": LOW},
        {"batches": _batches, "loss": loss_of},
    ),
    "a tie": (_tied, BLOCKS, {"prepare": _untie}),
    "a unit": (Net, BLOCKS, {"prepare": _wrap_otherwise}),
    "the reduction's dtype": (Net, {**BLOCKS, "mixed_precision": LOW}, {"prepare": _reduce_low}),
    "the divisor": (Net, BLOCKS, {"prepare": _divide_otherwise}),
    "replicas": (Net, {**BLOCKS, "sharding_strategy": "NO_SHARD"}, {"prepare": _leave_replicas_apart}),
    "buffers": (Net, {**BLOCKS, "mixed_precision": LOW}, {"prepare": _cast_no_buffers}),
    "the optimizer": (Net, BLOCKS, {"optimizer": _leave_out}),
    "random numbers": (Recomputing, {"use_orig_params": True}, {"prepare": _replay_others}),
    "explained": (
        Net,
        {**BLOCKS, "mixed_precision": {"param_dtype": "bf16", "keep_low_precision_grads": True}},
        {"optimizer": _sgd},
    ),
    "explained, by the default optimizer": (
        Net,
        {**BLOCKS, "mixed_precision": {"param_dtype": "bf16", "keep_low_precision_grads": True}},
        {"batch_size": 3, "seq_length": 5},
    ),
}
"""A model, FSDP1's arguments, and what is given to ``compare_runs``: where the fault is."""


def compare_all(folder: str) -> dict[str, ParityReport]:
    """Compare each case for two steps, and once from a checkpoint of FSDP1; return the reports."""
    warnings.simplefilter("ignore")
    checkpoints.save_fsdp1(folder)
    found = {
        "nothing, from a checkpoint": compare_runs(
            checkpoints.Model,
            {"auto_wrap_policy": "Block", "use_orig_params": True},
            steps=1,
            device="cpu",
            checkpoint=folder,
        )
    }
    for name, (model, config, more) in CASES.items():
        found[name] = compare_runs(model, config, steps=2, device="cpu", **more)
    return found
