"""Tied embeddings: two names, one parameter, owned by one unit; with `group` as a unit of their own.

torchrun --nproc-per-node 2 examples/ties.py
torchrun --nproc-per-node 2 examples/ties.py --tied group
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.runtime import end_process_group


class Head(nn.Linear):
    """The output layer, as a class of its own that a policy can select."""


class Model(nn.Module):
    """A language model whose head is its embedding; 101 rows divide over no number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, dropout=0) for _ in range(2))
        self.head = Head(16, 101, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tied", choices=("parent", "group"), default="parent")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Every class here becomes a unit of its own, which would tear the tie: the plan says how it is kept.
    arguments = {
        "auto_wrap_policy": {nn.Embedding, Head, nn.TransformerEncoderLayer},
        "device_id": "cpu",
    }
    model = prepare_fully_shard(Model(), arguments, tied=options.tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dist.get_rank() == 0:
        for finding in shard_plan(model).findings:
            print(finding.code, finding.message)
    for step in range(3):
        tokens = torch.randint(0, 101, (4, 8), generator=torch.Generator().manual_seed(0))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} still tied {model.head.weight is model.embed.weight}")
    end_process_group()


if __name__ == "__main__":
    main()
