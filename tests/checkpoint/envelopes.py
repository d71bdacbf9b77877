"""States as people save them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


State = dict[str, Any]


class Odd(nn.Module):
    """What a state dict can hold beside matrices: statistics, scalars, nothing, other types, a tie."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.nothing = nn.Parameter(torch.zeros(0, width))
        self.waves = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.short = nn.Parameter(torch.randn(3, 5).bfloat16())
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("places", torch.arange(3))
        self.emb = nn.Embedding(7, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Linear(2, width).requires_grad_(False)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a loss to which every trained parameter contributes."""
        hidden = self.norm(self.emb(tokens).mean(1))
        odd = self.short.float().sum() + self.turned.sum() + self.waves.abs().sum() + self.nothing.sum()
        loss: torch.Tensor = (self.head(hidden) * self.scale).square().sum() + odd
        return loss


def trained(
    width: int = 4, kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
) -> tuple[State, State]:
    """Return the states of a trained model and its optimizer, which knows parameters by number."""
    torch.manual_seed(width)
    model = Odd(width)
    optimizer = kind(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 7, (3, 2))).backward()
        optimizer.step()
    return model.state_dict(), optimizer.state_dict()


def names_of(width: int = 4) -> list[str]:
    """Return the names of a model's parameters in their order."""
    return [name for name, _ in Odd(width).named_parameters()]


def by_name(state: State, width: int = 4) -> State:
    """Return an optimizer's state as torch.distributed gathers it, by name."""
    names = names_of(width)
    groups = [{**group, "params": [names[n] for n in group["params"]]} for group in state["param_groups"]]
    return {"state": {names[n]: moments for n, moments in state["state"].items()}, "param_groups": groups}


MODEL, NUMBERED = trained()


OPTIMIZER = by_name(NUMBERED)


BARE = {"state": {}, "param_groups": OPTIMIZER["param_groups"]}


def save(state: State, path: Path) -> Path:
    """Save a state as a file or, where the name has no ending, as a distributed checkpoint."""
    if not path.suffix:
        return save_with_torch(state, path)
    torch.save(state, path)
    return path
