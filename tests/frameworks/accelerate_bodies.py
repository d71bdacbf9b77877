"""Ranks that train under Accelerate's FSDP1, and go on with what docs/frameworks.md shows."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import load_checkpoint
from tests.models import Net, batch


Trained = tuple[list[float], dict[str, torch.Tensor]]
"""The losses after a checkpoint, and the weights at the end."""


def go_on(folder: str, precision: str, accumulation: int, most: float, example: str) -> dict[str, Trained]:
    """Return what FSDP1 has trained after a checkpoint, which was not stopped, and what the example has."""
    warnings.simplefilter("ignore")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    # Accelerate makes FSDP of several accelerators alone.
    several = mock.Mock(return_value=("gloo", DistributedType.MULTI_GPU))
    with (
        mock.patch.object(PartialState, "_prepare_backend", several),
        mock.patch.object(PartialState, "set_device", _take_the_cpu),
    ):
        found = {"fsdp1": _fsdp1(folder, precision, accumulation, most)}
        AcceleratorState._reset_state(reset_partial_state=True)
        found["example"] = _example(folder, precision, accumulation, example)
    return found


def _take_the_cpu(state: Any) -> None:
    state.device = torch.device("cpu")


def _make(precision: str, accumulation: int) -> tuple[Accelerator, nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=1,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        state_dict_type="SHARDED_STATE_DICT",
        use_orig_params=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(
        mixed_precision=precision, fsdp_plugin=plugin, gradient_accumulation_steps=accumulation
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return accelerator, model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _loss(model: nn.Module, step: int) -> torch.Tensor:
    tokens = batch(step, dist.get_rank())
    # Without a cast of its own: what dtype the outputs have decides.
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def _fsdp1(folder: str, precision: str, accumulation: int, most: float) -> Trained:
    accelerator, model, optimizer, scheduler = _make(precision, accumulation)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    losses = []
    for step in range(5 * accumulation):
        if step == 2 * accumulation:
            accelerator.save_state(folder)
        with accelerator.accumulate(model):
            loss = _loss(model, step)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    with FSDP.summon_full_params(model):
        weights = {
            name.replace("_fsdp_wrapped_module.", ""): param.detach().clone()
            for name, param in model.named_parameters()
        }
    return losses[2 * accumulation :], weights


def _example(folder: str, precision: str, accumulation: int, example: str) -> Trained:
    accelerator, model, optimizer, scheduler = _make(precision, accumulation)
    names: dict[str, Any] = {
        "accelerator": accelerator,
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": range(2 * accumulation, 5 * accumulation),
        "loss_of": _loss,
        "CKPT": folder,
        "OUT": f"{folder}-new",
        "losses": [],
    }
    exec(compile(example, "docs/frameworks.md", "exec"), names)
    # The page says that the next run goes on from it by the same lines.
    load_checkpoint(f"{folder}-new", names["model"], names["optimizer"].optimizer)
    if accelerator.is_main_process:
        scheduler.load_state_dict(torch.load(f"{folder}-new/scheduler.bin"))
    weights = {name: param.full_tensor().detach() for name, param in names["model"].named_parameters()}
    return list(names["losses"]), weights
