"""Rows of a sharded embedding's gradient that are read and written by an index, under FSDP1 and FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from fsdp_migrate.sharding.prepare import prepare_fully_shard


if TYPE_CHECKING:
    from collections.abc import Callable


ROWS, WIDTH, ROW = 12, 4, 3
Outcomes = dict[str, str]


def _made(wrap: Callable[[nn.Module, dict[str, Any]], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, ROWS))
    policy = ModuleWrapPolicy({nn.Embedding, nn.Linear})  # in one unit a rank may have nothing of one
    return wrap(net, {"auto_wrap_policy": policy, "device_id": torch.device("cpu"), "use_orig_params": True})


def _gradient() -> DTensor:
    model = _made(prepare_fully_shard)
    model(torch.arange(ROWS)).pow(2).sum().backward()
    grad = next(model.parameters()).grad
    assert isinstance(grad, DTensor)
    return grad


def _set(x: torch.Tensor, where: Any, value: Any) -> None:
    x[where] = value


def _multiplied(x: torch.Tensor) -> None:
    x[ROW] *= 0


_WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "x[i] = like it": lambda x: _set(x, ROW, torch.zeros_like(x[ROW])),
    "x[i] *= 0": _multiplied,
    "x[i].zero_()": lambda x: x[ROW].zero_(),
    "x[i, j] = 0": lambda x: _set(x, (ROW, 1), 0.0),
    "x[a:b].zero_()": lambda x: x[2:9].zero_(),
    "x.narrow(0, a, n).zero_()": lambda x: x.narrow(0, 2, 7).zero_(),
    "x.select(0, i).zero_()": lambda x: x.select(0, ROW).zero_(),
    "x[...] = like it": lambda x: _set(x, ..., torch.zeros_like(x)),
    "x[:] = like it": lambda x: _set(x, slice(None), torch.zeros_like(x)),
    "x[...] = 0": lambda x: _set(x, ..., 0.0),
    "x[...].zero_()": lambda x: x[...].zero_(),
    "x[:].zero_()": lambda x: x[:].zero_(),
    "x[a:b] = 0": lambda x: _set(x, slice(2, 9), 0.0),
    "x[..., 0] = 0": lambda x: _set(x, (..., 0), 0.0),
    "x[i] = plain": lambda x: _set(x, ROW, torch.zeros(WIDTH)),
    "x[x > 0] = 0": lambda x: _set(x, x > 0, 0.0),
    "x[[i, j]] = 0": lambda x: _set(x, [1, 9], 0.0),
    "x[[i, j]]": lambda x: x[[1, 9]],
    "x[x > 0]": lambda x: x[x > 0],
}


def outcomes() -> Outcomes:
    """Return what becomes of each: ``refused``, ``lost``, or ``done`` as with a plain tensor."""
    found = {}
    for name, write in _WRITES.items():
        grad = _gradient()
        before = grad.full_tensor().clone()
        wanted = before.clone()
        write(wanted)
        try:
            write(grad)
        except (RuntimeError, NotImplementedError, AssertionError):
            found[name] = "refused"
            continue
        after = grad.full_tensor()
        found[name] = "done" if torch.equal(after, wanted) else "lost" if torch.equal(after, before) else "?"
    return found


def _losses(model: nn.Module, keep: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """Train an embedding of whose gradient one row alone is kept."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(3):
        tokens = torch.arange(ROWS)
        loss = functional.cross_entropy(model(tokens), (tokens * 5 + 1) % ROWS)
        loss.backward()
        weight = next(model.parameters())
        assert weight.grad is not None
        weight.grad = keep(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _by_index(grad: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(grad)
    mask[ROW] = torch.ones_like(mask[ROW])
    return grad * mask


def _by_advice(grad: torch.Tensor) -> torch.Tensor:
    assert isinstance(grad, DTensor)
    mask = torch.zeros_like(grad.full_tensor())
    mask[ROW] = 1
    return grad * distribute_tensor(mask, grad.device_mesh, grad.placements)


def masked() -> dict[str, list[float] | str]:
    """Return the losses of each way to keep one row of an embedding's gradient."""
    found: dict[str, list[float] | str] = {
        "one process": _losses(_made(lambda net, _: net), _by_index),
        "FSDP1": _losses(_made(lambda net, arguments: FSDP(net, **arguments)), _by_index),
        "as advised": _losses(_made(prepare_fully_shard), _by_advice),
    }
    try:
        found["FSDP2"] = _losses(_made(prepare_fully_shard), _by_index)
    except NotImplementedError:
        found["FSDP2"] = "refused"
    return found
