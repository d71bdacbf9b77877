"""Weights that a script keeps twice, float32 for the optimizer and half for the forward, under both."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.sharding.prepare import prepare_fully_shard


HALF, WIDTH = torch.bfloat16, 8


class Block(nn.Module):
    """A unit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    """Tokens, and a float32 input that nothing of FSDP1's cast."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 16)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        out: torch.Tensor = self.head(self.blocks((x * scale).to(x.dtype)))
        return out


def _net() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    arguments = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": torch.device("cpu")}
    return Net().to(HALF), arguments


def _backward(model: nn.Module, number: int) -> float:
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    tokens = torch.randint(0, 16, (3, 5), generator=generator)
    scale = torch.rand(3, 5, 1, generator=generator)
    loss = nn.functional.cross_entropy(model(tokens, scale).float().flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.item()


def under_fsdp1(microbatches: int) -> list[float]:
    """Return the losses of a script that swaps ``p.data`` around the optimizer's step."""
    net, arguments = _net()
    model = FSDP(net, **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    params = list(model.parameters())
    masters = {p: p.detach().to(torch.float32) for p in params}
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        losses += [_backward(model, microbatches * step + each) for each in range(microbatches)]
        halves = {p: p.data for p in params}
        for p in params:
            assert p.grad is not None
            p.data = masters[p]
            p.grad = p.grad.to(torch.float32)
        optimizer.step()
        for p in params:
            p.data = halves[p].copy_(masters[p])
            p.grad = None
    return losses


def as_said(microbatches: int, *, casts_inputs: bool = False) -> list[float]:
    """Return those of the model that is prepared as FM423 says."""
    net, arguments = _net()
    for p in net.parameters():
        p.data = p.data.float()
    precision = MixedPrecision(HALF, HALF, cast_root_forward_inputs=casts_inputs)
    model = prepare_fully_shard(net, {**arguments, "mixed_precision": precision})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        losses += [_backward(model, microbatches * step + each) for each in range(microbatches)]
        optimizer.step()
    return losses


def with_inputs_cast(microbatches: int) -> list[float]:
    """Return those of :func:`as_said`, but for ``cast_root_forward_inputs``, which is as torch has it."""
    return as_said(microbatches, casts_inputs=True)
