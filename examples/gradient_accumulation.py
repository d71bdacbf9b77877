"""Accumulates gradients over microbatches of which every rank has another number.

torchrun --nproc-per-node 2 examples/gradient_accumulation.py [--comms every|last|auto] [--agree]

Sequences of different lengths are packed into microbatches of up to 24 tokens, as language models are
trained. The loss is the mean over the tokens of all ranks: each part's sum, divided by their number, times
the number of ranks, because FSDP takes the mean over ranks.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import microbatches, prepare_fully_shard
from fsdp_migrate.runtime import end_process_group


def pack(lengths: list[int], limit: int = 24) -> list[list[int]]:
    packs: list[list[int]] = [[]]
    for length in lengths:
        if packs[-1] and sum(packs[-1]) + length > limit:
            packs.append([])
        packs[-1].append(length)
    return packs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comms", choices=("every", "last", "auto"), default="auto")
    parser.add_argument("--agree", action="store_true", help="fail on all ranks when one fails")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)) for _ in "ab")
    )
    prepare_fully_shard(model, {"auto_wrap_policy": {nn.Linear}, "device_id": device})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)

    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        lengths = torch.randint(1, 20, (4 + 3 * rank,), generator=generator).tolist()
        parts = [torch.randn(sum(one), 16, generator=generator).to(device) for one in pack(lengths)]
        tokens = torch.tensor(sum(lengths), device=device)
        dist.all_reduce(tokens)
        total = torch.zeros((), device=device)
        with microbatches(model, parts, comms=options.comms, agree=options.agree) as batch_parts:
            for part in batch_parts:
                loss = (model(part) - part.roll(1, 1)).square().mean(1).sum() / tokens
                (loss * ranks).backward()
                total += loss.detach()
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} rank {rank}: {len(parts)} microbatches, loss {total.item():.6f}")

    end_process_group()


if __name__ == "__main__":
    main()
