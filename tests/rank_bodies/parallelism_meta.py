"""Models on the meta device that tensor parallelism has placed before FSDP, under FSDP1 and under FSDP2."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Block
from tests.rank_bodies.parallelism import Decoder, loss_of, tensor_plan, tokens_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class Trained:
    """The losses of a run, and its parameters at the end."""

    losses: list[float]
    values: dict[str, torch.Tensor]


def _initialise(root: DeviceMesh, *, apart: bool) -> Callable[[nn.Module], None]:
    """Return a function that fills modules; ranks of one part draw the same, unless they are ``apart``."""
    first = 1000 * root["dp"].get_local_rank() if apart else 0
    shared = torch.Generator().manual_seed(first)
    own = torch.Generator().manual_seed(first + 1 + root["tp"].get_local_rank())

    @torch.no_grad()
    def fill(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        for param in module.parameters(recurse=False):
            if isinstance(param.data, DTensor):
                param.data.to_local().uniform_(-0.3, 0.3, generator=own)
            else:
                param.uniform_(-0.3, 0.3, generator=shared)
        for buffer in module.buffers(recurse=False):
            buffer.fill_(0.75)

    return fill


def _parallelized(root: DeviceMesh) -> Any:
    model = Decoder().to("meta")
    parallelize_module(model, root["tp"], tensor_plan())
    return model


def train(prepared: bool, sync: bool) -> Trained:
    """Shard a parallelized model of the meta device, and train it three steps."""
    warnings.simplefilter("ignore")
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _parallelized(root)
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "device_id": torch.device("cpu"),
        "device_mesh": root["dp"],
        "param_init_fn": _initialise(root, apart=sync),
        "sync_module_states": sync,
        "use_orig_params": True,
    }
    model = prepare_fully_shard(model, arguments) if prepared else FSDP(model, **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, tokens_of(step, root["dp"].get_local_rank()))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    if prepared:
        return Trained(losses, _whole(model))
    with FSDP.summon_full_params(model):
        return Trained(losses, _whole(model))


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.replace("_fsdp_wrapped_module.", ""): (
            param.data.full_tensor() if isinstance(param.data, DTensor) else param.data
        ).clone()
        for name, param in model.named_parameters()
    }


def init_that_forgets_the_placement() -> str:
    """Pass a function that puts plain parameters into the place of DTensors; return the error."""
    warnings.simplefilter("ignore")
    root = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = _parallelized(root)

    def plain(module: nn.Module) -> None:
        for buffer in dict(module.named_buffers(recurse=False)):
            setattr(module, buffer, torch.ones(1))
        for name, param in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.zeros(param.shape, dtype=param.dtype)))

    try:
        prepare_fully_shard(model, {"param_init_fn": plain, "device_id": "cpu"}, mesh=root["dp"])
    except FSDPMigrateError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
