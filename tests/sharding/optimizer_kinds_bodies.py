"""Every optimizer of torch's under FSDP1 and prepared, and on one process."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.errors import FindingsError
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.models import Block, Net, batch, loss_of


if TYPE_CHECKING:
    from collections.abc import Callable


def _matrices(params: list[nn.Parameter], **options: Any) -> Any:
    return getattr(optim, "Muon")([param for param in params if param.ndim == 2], **options)  # noqa: B009


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": partial(optim.SGD, lr=0.05, momentum=0.9),
    "SGD, fused": partial(optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "Adam": partial(optim.Adam, lr=0.02),
    "AdamW": partial(optim.AdamW, lr=0.02),
    "AdamW, amsgrad": partial(optim.AdamW, lr=0.02, amsgrad=True),
    "AdamW, fused": partial(optim.AdamW, lr=0.02, fused=True),
    "AdamW, foreach": partial(optim.AdamW, lr=0.02, foreach=True),
    "Adagrad": partial(optim.Adagrad, lr=0.02),
    "Adagrad, fused": partial(optim.Adagrad, lr=0.02, fused=True),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "ASGD": optim.ASGD,
    "RMSprop": partial(optim.RMSprop, lr=0.001),
    "Rprop": optim.Rprop,
    "Rprop, foreach": partial(optim.Rprop, foreach=True),
    "Adafactor": optim.Adafactor,
    "LBFGS": partial(optim.LBFGS, lr=0.1, max_iter=3),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = partial(_matrices, lr=0.05)


def _train(model: Any, optimizer: Any, *, average: bool = False) -> list[float]:
    losses = []
    for step in range(3):
        loss = loss_of(model, batch(step, dist.get_rank()))
        torch.autograd.backward(loss)
        for param in model.parameters() if average else ():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def compare(name: str) -> dict[str, Any]:
    """Train under both; return the losses, those of unsharded training, and what is found."""
    warnings.simplefilter("ignore")
    make = OPTIMIZERS[name]
    found: dict[str, Any] = {}
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    torch.manual_seed(0)
    model: Any = Net()
    optimizer = make(list(model.parameters()))
    try:
        prepare_fully_shard(model, arguments, optimizers=optimizer)
    except FindingsError as error:
        return {"codes": [finding.code for finding in error.findings]}
    codes = [finding.code for finding in shard_plan(model).findings]
    found["codes"] = [code for code in codes if code in {"FM113", "FM114", "FM115"}]
    found["prepared"] = _train(model, optimizer)
    torch.manual_seed(0)
    plain: Any = Net()
    found["plain"] = _train(plain, make(list(plain.parameters())), average=True)
    if "FM114" not in codes:
        torch.manual_seed(0)
        wrapped = FSDP(Net(), **arguments)
        found["FSDP1"] = _train(wrapped, make(list(wrapped.parameters())))
    return found


def compare_all() -> dict[str, dict[str, Any]]:
    """Train by every optimizer."""
    return {name: compare(name) for name in OPTIMIZERS}
