"""A training script before and after its migration: `--fsdp 1` and `--fsdp 2` differ in one line.

torchrun --nproc-per-node 2 examples/train.py --fsdp 1 --save checkpoint-1
fsdp-migrate convert checkpoint-1 checkpoint-2
torchrun --nproc-per-node 2 examples/train.py --fsdp 2 --load checkpoint-2
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import end_process_group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsdp", type=int, choices=(1, 2), required=True)
    parser.add_argument("--load")
    parser.add_argument("--save")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else "cpu"

    model: nn.Module = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, dropout=0) for _ in range(2)))
    fsdp_arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({nn.TransformerEncoderLayer}),
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
        "device_id": torch.device(device),
        "use_orig_params": True,
    }
    if options.fsdp == 1:
        model = FSDP(model, **fsdp_arguments)  # before
    if options.fsdp == 2:
        model = prepare_fully_shard(model, fsdp_arguments)  # after

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    done = load(model, optimizer, scheduler, options.load) if options.load else 0
    for step in range(done, done + 3):
        inputs = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(step)).to(device)
        loss = (model(inputs) - inputs.roll(1, 0)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.9f}")
    if options.save:
        dcp.save(whole_state(model, optimizer, scheduler, step + 1), checkpoint_id=options.save)
    end_process_group()


def whole_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    step: int,
) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    rest = {"scheduler": scheduler.state_dict(), "step": step}
    return {"model": model_state, "optimizer": optimizer_state, **rest}


def load(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    folder: str,
) -> int:
    """Load everything, and return the steps that were done. `dcp.load` fills in only what it is asked for."""
    state = whole_state(model, optimizer, scheduler, step=0)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return int(state["step"])


if __name__ == "__main__":
    main()
