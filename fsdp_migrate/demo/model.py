"""What the demo trains: a small transformer, its optimizer, its batches and its FSDP1 arguments.

Nothing divides evenly: the width is 33 and the vocabulary 101, so that no two ranks hold equally many rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional


VOCABULARY = 101
WIDTH = 33
NUM_HEADS = 3
NUM_BLOCKS = 3
SEQUENCE = 24
BATCH = 4


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this block."""
        batch, length, _ = hidden.shape
        mixed = self.mix(self.norm_1(hidden)).view(batch, length, NUM_HEADS, 3 * WIDTH // NUM_HEADS)
        query, key, value = mixed.transpose(1, 2).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        mapped: torch.Tensor = self.down(functional.gelu(self.up(self.norm_2(hidden))))
        return hidden + mapped


class Transformer(nn.Module):
    """A causal language model of three blocks, with its positions in a buffer."""

    positions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        angles = torch.outer(torch.arange(SEQUENCE), 1 / 100 ** (torch.arange(WIDTH) / WIDTH))
        self.register_buffer("positions", angles.sin())
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at every position."""
        hidden = self.tokens(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def fsdp1_arguments(world_size: int) -> dict[str, Any]:
    """Return the arguments that the demo gives to FSDP1 and, as they are, to `prepare_fully_shard`.

    Four ranks form two replicas of two shards: sums over two ranks are the same in whatever order they are
    made, so that both runs can be compared bit for bit.
    """
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
        "device_id": torch.device("cpu"),
        "use_orig_params": True,
        "limit_all_gathers": True,
    }
    if world_size == 4:
        arguments["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
        arguments["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return arguments


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW with two groups: weight decay for the matrices, none for norms and biases.

    The groups go by name. Under FSDP1 every parameter is a flat view, so that `p.ndim` tells nothing.
    """
    named = list(model.named_parameters())
    is_decayed = {name: name.endswith("weight") and "norm" not in name for name, _ in named}
    return torch.optim.AdamW(
        [
            {"params": [p for name, p in named if is_decayed[name]], "weight_decay": 0.1},
            {"params": [p for name, p in named if not is_decayed[name]], "weight_decay": 0.0},
        ],
        lr=3e-3,
        betas=(0.9, 0.95),
    )


def make_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and the targets that ``rank`` sees at ``step``."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    start = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
    sequence = (start + stride * torch.arange(SEQUENCE + 1)) % VOCABULARY
    return sequence[:, :-1], sequence[:, 1:]
