"""FSDP1 runs whose ranks save their own flat parameters, of models and optimizers out of the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class TiedApart(nn.Module):
    """An embedding in the root unit and a head in a unit of its own, which share their weight."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(7, 4)
        self.one = nn.Linear(4, 1)
        self.other = nn.Linear(1, 4)
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        hidden = self.embed(tokens).mean(1)
        loss: torch.Tensor = self.head(hidden + self.other(self.one(hidden).relu())).square().mean()
        return loss


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups, in an order that is not the model's."""
    named = {
        name.replace("_fsdp_wrapped_module.", ""): parameter for name, parameter in model.named_parameters()
    }
    first = [named.pop("head.weight"), named.pop("embed.weight")]
    return [{"params": first, "lr": 0.2}, {"params": list(named.values())}]


def _train(model: FSDP, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 7, (3, 2))).backward()
        optimizer.step()


def _wrap(model: nn.Module, *, use_orig_params: bool) -> FSDP:
    policy = ModuleWrapPolicy({nn.Linear})
    return FSDP(
        model, auto_wrap_policy=policy, use_orig_params=use_orig_params, device_id=torch.device("cpu")
    )


def _save(
    model: FSDP, optimizer: torch.optim.Optimizer, folder: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Save what this rank holds, and return what all hold together."""
    Path(folder).mkdir(exist_ok=True)
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    torch.save(state, Path(folder) / f"state_rank{dist.get_rank()}.pt")
    whole = FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *whole):
        values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return values, FSDP.optim_state_dict(model, optimizer)["state"]


def save_tied_apart(folder: str) -> dict[str, Any]:
    """Train a model that is tied between units, and save it."""
    model = _wrap(TiedApart(), use_orig_params=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _train(model, optimizer)
    values, state = _save(model, optimizer, folder)
    return {"model": values, "momentum": {name: own["momentum_buffer"] for name, own in state.items()}}


def save_plain_sgd(folder: str, use_orig_params: bool) -> dict[str, Any]:
    """Train with an optimizer that has no state, and save."""
    model = _wrap(TiedApart(tied=False), use_orig_params=use_orig_params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _train(model, optimizer)
    return _save(model, optimizer, folder)[0]


def save_grouped(folder: str, kind: str) -> dict[str, Any]:
    """Train with two parameter groups, and save; return the optimizer's state."""
    model = _wrap(TiedApart(tied=False), use_orig_params=True)
    optimizer = getattr(torch.optim, kind)(groups_of(model), lr=0.1)
    _train(model, optimizer)
    return _save(model, optimizer, folder)[1]


class Critic(nn.Module):
    """A model that has no unit in common with the other, but for the root."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        loss: torch.Tensor = self.net(self.embed(tokens).mean(1)).square().mean()
        return loss


def save_several(folder: str, names: dict[str, str], use_orig_params: bool) -> dict[str, Any]:
    """Train models, by name and class, each with an optimizer, and save all in one file a rank."""
    found: dict[str, Any] = {}
    state: dict[str, Any] = {"iter": 4}
    for seed, (name, kind) in enumerate(names.items()):
        torch.manual_seed(seed)
        net = TiedApart(tied=False) if kind == "TiedApart" else Critic()
        model = _wrap(net, use_orig_params=use_orig_params)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        _train(model, optimizer)
        found[name] = _save(model, optimizer, folder)
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            state |= {name: model.state_dict(), f"{name}_optim": optimizer.state_dict()}
    torch.save(state, Path(folder) / f"state_rank{dist.get_rank()}.pt")
    return found
