"""Training scripts with FSDP1 for `bench_scan.py`: no two alike, each of some 130 lines."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD")
CLIPS = (
    "model.clip_grad_norm_(args.max_norm)",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)",
    "FSDP.clip_grad_norm_(model, args.max_norm)",
)
STATES = (
    """with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, full):
        weights = model.state_dict()
    state = FSDP.full_optim_state_dict(model, optimizer)""",
    """FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    weights = model.state_dict()
    state = FSDP.optim_state_dict(model, optimizer)""",
    """with FSDP.summon_full_params(model, writeback=False):
        weights = {name: each.detach().cpu() for name, each in model.named_parameters()}
    state = optimizer.state_dict()""",
)
SCRIPT = Template('''"""Training run $number."""

import argparse
import functools
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler

logger = logging.getLogger(__name__)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        inner = $factor * width
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x):
        seen, _ = self.attention(x, x, x, need_weights=False)
        return x + self.feed(self.norm(x + seen))


class Net(nn.Module):
    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, $heads) for _ in range(depth)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=$width)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--max_norm", type=float, default=1.0)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--out", default="runs/$number")
    return parser.parse_args()


def build(args, device):
    model = Net(32_000, args.width, args.depth)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    precision = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16) if args.bf16 else None
    return FSDP(
        model,
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy.$strategy,
        mixed_precision=precision,
        cpu_offload=CPUOffload(offload_params=$offload),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=device,
        use_orig_params=$original,
    )


def save(model, optimizer, args, step):
    full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    $states
    if dist.get_rank() == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"model": weights, "optimizer": state, "step": step}, f"{args.out}/{step}.pt")
    dist.barrier()


def train(model, loader, optimizer, scheduler, args):
    model.train()
    for step, (tokens, labels) in enumerate(loader):
        tokens, labels = tokens.cuda(), labels.cuda()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / args.accumulate
        if (step + 1) % args.accumulate:
            with model.no_sync():
                loss.backward()
            continue
        loss.backward()
        norm = $clip
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 100 == 0:
            logger.info("step %d: loss %.4f, norm %.2f", step, loss.item() * args.accumulate, norm)
    return step


def main():
    args = parse()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    data = torch.load("tokens-$number.pt")
    for epoch in range(args.epochs):
        sampler = DistributedSampler(data, shuffle=True, seed=epoch)
        loader = DataLoader(data, batch_size=$rows, sampler=sampler, num_workers=2)
        step = train(model, loader, optimizer, scheduler, args)
        save(model, optimizer, args, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
''')


def write_sources(folder: Path, files: int) -> None:
    """Write so many scripts into a folder; whatever they differ in changes from one to the next."""
    for number in range(files):
        text = SCRIPT.substitute(
            number=number,
            factor=2 + number % 3,
            heads=4 << number % 3,
            width=256 << number % 4,
            rows=1 + number % 7,
            strategy=STRATEGIES[number % 3],
            offload=number % 5 == 0,
            original=number % 2 == 0,
            states=STATES[number % 3],
            clip=CLIPS[number // 3 % 3],
        )
        (folder / f"train_{number}.py").write_text(text, encoding="utf-8")
