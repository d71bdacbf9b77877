"""Two steps of training on fake tensors, as rank 0 of any number of ranks: under FSDP1, and prepared.

Nothing of what FSDP does is modelled: torch's own code of FSDP1 and FSDP2 runs, and what it would allocate is
logged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate.parity.batches import move, tensors_in
from fsdp_migrate.parity.fsdp1 import fsdp1_arguments, wrap_in_fsdp1
from fsdp_migrate.parity.trainees import quiet_fsdp1
from fsdp_migrate.sharding.activation_checkpointing import apply_checkpoint_plan
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.sharding.prepare import apply_plan
from fsdp_migrate.sharding.resolve import REPLICATE, SHARD
from fsdp_migrate.torch_compat.fake_runs import fake_copy, fake_world, make_fake_mode
from fsdp_migrate.torch_compat.held_memory import MemoryLog


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.sharding.plan import ShardPlan


Which = Literal["FSDP1", "FSDP2"]

STEPS = 2
"""The optimizer has its state from the second step on."""
CPU = torch.device("cpu")
_GRANULE = 512
"""CUDA's allocator hands out multiples of so many bytes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is rehearsed: the model with its plan and config, what it is fed with, and how it is trained.

    ``batches`` are one step's, a microbatch each; all but the last run without synchronisation.
    """

    model: nn.Module
    plan: ShardPlan
    config: FSDP1Config
    options: dict[str, Any]
    batches: Sequence[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    make_optimizer: Callable[[nn.Module], Optimizer]
    on_cpu: bool = False


def rehearse(part: Part, which: Which) -> MemoryLog:
    """Train on fake tensors; return the log of what is held, whose phases begin with ``forward 1``.

    The last step's phases begin with ``forward``; no process group may be there.
    """
    replicas, shards = part.plan.mesh_shape
    mode = make_fake_mode()
    log = MemoryLog(granule=1 if part.on_cpu else _GRANULE)
    with fake_world(replicas * shards), quiet_fsdp1():
        config = _config_here(part)
        model = fake_copy(part.model, mode)
        sharded = _under_fsdp1(part, model, config) if which == "FSDP1" else _prepared(part, model, config)
        optimizer = part.make_optimizer(sharded)
        if not part.on_cpu:
            # Fake tensors are the CPU's, where optimizers step one parameter after the other, in less memory.
            _step_as_on_gpus(optimizer)
        log.label(sharded.parameters(), "parameters")
        log.label(sharded.buffers(), "buffers")
        with mode, log.watching():
            train(sharded, optimizer, part.batches, part.loss, log)
    return log


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], torch.Tensor],
    log: MemoryLog | None = None,
) -> None:
    """Train two steps, as a loop that keeps nothing longer than it must; without batches step alone."""

    def begin(phase: str, *, steps: bool = False) -> None:
        if log is not None:
            log.begin(phase, steps_optimizer=steps)

    for number in range(STEPS):
        suffix = "" if number == STEPS - 1 else f" {number + 1}"
        if not batches:
            for param in model.parameters():
                param.grad = torch.zeros_like(param) if param.requires_grad else None
        for place, given in enumerate(batches, 1):
            begin(f"forward{suffix}")
            batch = move(given, CPU)
            if log is not None:
                log.label(tensors_in(batch), "inputs")
            with _without_reduction(model, is_on=place < len(batches)):
                found = loss(model, batch)
                begin(f"backward{suffix}")
                torch.autograd.backward(found)
            # A loop that kept them would hold this graph while the next forward makes its own.
            del found, batch
        if log is not None:
            log.label((each.grad for each in model.parameters()), "gradients")
        begin(f"optimizer step{suffix}", steps=True)
        optimizer.step()
        if log is not None:
            log.label(_state_of(optimizer), "optimizer_state")
        begin(f"zero_grad{suffix}")
        optimizer.zero_grad()


def _state_of(optimizer: Optimizer) -> list[torch.Tensor]:
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, torch.Tensor)]


@contextlib.contextmanager
def _without_reduction(model: Any, *, is_on: bool) -> Iterator[None]:
    if isinstance(model, FSDP):
        with model.no_sync() if is_on else contextlib.nullcontext():
            yield
        return
    # Set for each microbatch: nothing puts this setting of FSDP2's back.
    model.set_requires_gradient_sync(not is_on)
    yield


def _step_as_on_gpus(optimizer: Optimizer) -> None:
    """Let an optimizer step all parameters at once, as it does by itself on a GPU."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _config_here(part: Part) -> FSDP1Config:
    """Return the config for the CPU, groups that the plan has, and the copied model, by names."""
    names = {
        "ignored_modules": part.plan.ignored_modules if part.config.ignored_modules else None,
        "ignored_states": part.plan.ignored if part.config.ignored_states else None,
    }
    mesh = None
    if part.plan.config.mesh == "hybrid":
        mesh = init_device_mesh("cpu", part.plan.mesh_shape, mesh_dim_names=(REPLICATE, SHARD))
    return part.config.updated(
        device_id="cpu",
        device_mesh=mesh,
        process_group=None,
        # No values are there to broadcast or to initialise, and FSDP1 offloads only beside an accelerator.
        sync_module_states=False,
        param_init_fn=None,
        cpu_offload=None,
        **{name: list(value) if value else None for name, value in names.items()},
    )


def _prepared(part: Part, model: nn.Module, config: FSDP1Config) -> nn.Module:
    plan = plan_fully_shard(model, config, **part.options)
    if plan.checkpointing is not None:
        apply_checkpoint_plan(model, plan.checkpointing)
    # Without groups, for there is no other rank that could agree.
    apply_plan(model, plan, [])
    return model


def _under_fsdp1(part: Part, model: nn.Module, config: FSDP1Config) -> nn.Module:
    if part.plan.checkpointing is not None:
        apply_checkpoint_plan(model, part.plan.checkpointing)
    arguments, _ = fsdp1_arguments(config, model, CPU)
    return wrap_in_fsdp1(model, arguments)
