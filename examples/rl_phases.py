"""Reinforcement learning: an inference engine has the device in one phase, the training in the next.

torchrun --nproc-per-node 2 examples/rl_phases.py
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import end_process_group, named_full_tensors, offloaded


WORDS, LENGTH, WANTED = 12, 8, 3


class Policy(nn.Module):
    """Gives each word's logits for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.block = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 16))
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        out: torch.Tensor = self.head(x + self.block(x))
        return out


class Engine:
    """Stands for the inference engine of each rank, which has whole weights and its own kernels."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.weights = self.model.state_dict()

    def load(self, name: str, tensor: torch.Tensor) -> None:
        self.weights[name].copy_(tensor)

    def generate(self, rows: int, generator: torch.Generator) -> torch.Tensor:
        words = [torch.zeros(rows, dtype=torch.long)]
        for _ in range(LENGTH):
            chances = self.model(words[-1]).softmax(-1)
            words.append(torch.multinomial(chances, 1, generator=generator)[:, 0])
        return torch.stack(words, 1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Policy()
    engine = Engine(model)  # FSDP2 models cannot be copied: before sharding
    model = prepare_fully_shard(model, {"auto_wrap_policy": {nn.Sequential}, "device_id": "cpu"})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for phase in range(3):
        with offloaded(model, optimizer):
            names = []
            # A bucket is on the device at a time. An engine in other processes is sent what is yielded here.
            for name, tensor in named_full_tensors(model, bucket_bytes=2048):
                engine.load(name, tensor)
                names.append(name)
            words = engine.generate(64, generator)
        reward = (words[:, 1:] == WANTED).float()
        for _ in range(4):
            logits = model(words[:, :-1])
            chosen = logits.log_softmax(-1).gather(-1, words[:, 1:, None])[..., 0]
            loss = -((reward - reward.mean()) * chosen).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        average = reward.mean()
        dist.all_reduce(average)
        if rank == 0:
            print(f"phase {phase}: sent {names}")
            print(f"phase {phase}: reward {average.item() / dist.get_world_size():.4f}")
    end_process_group()


if __name__ == "__main__":
    main()
