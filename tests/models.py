"""Small models with the shapes that break things: uneven rows, buffers, ties, BatchNorm."""

from __future__ import annotations

import torch
from torch import nn


VOCABULARY = 13


class Block(nn.Module):
    """A residual block whose inner width does not divide by 2 or 4."""

    scale: torch.Tensor

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.register_buffer("scale", torch.full((1,), 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.up(self.norm(x)))
        out: torch.Tensor = x + self.down(hidden) * self.scale.to(x.dtype)
        return out


class Head(nn.Module):
    """A norm and an output layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(x))
        return out


class Net(nn.Module):
    """A language model of two blocks: embedding, ModuleList of blocks, head."""

    def __init__(self, width: int = 6, inner: int = 17, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(2))
        self.head = Head(width)
        self.register_buffer("offset", torch.full((width,), 0.1))
        if tied:
            self.head.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.offset.to(x.dtype)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, which FSDP1 keeps in full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(1, 5, 3, padding=1), nn.BatchNorm1d(5), nn.ReLU())
        self.second = nn.Sequential(nn.Conv1d(5, 3, 3, padding=1), nn.BatchNorm1d(3), nn.ReLU())
        self.out = nn.Linear(3, VOCABULARY)
        self.gain = nn.Parameter(torch.full((3,), 0.7))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # The root's own parameter tells the precision in which the model runs.
        x = (tokens.float().unsqueeze(1) / VOCABULARY).to(self.gain.dtype) * self.gain[:1]
        out: torch.Tensor = self.out(self.second(self.first(x)).transpose(1, 2))
        return out


def batch(step: int, rank: int, rows: int = 3, length: int = 5) -> torch.Tensor:
    """Return the tokens of one rank's batch, another one for every step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, VOCABULARY, (rows, length), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the model's loss at repeating its input."""
    out = model(tokens)
    return nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())


def tied_net() -> Net:
    """Return a net whose head is its embedding."""
    return Net(tied=True)


def number() -> int:
    """Return something that is no module."""
    return 3
