"""What is trained changes during the run: under FSDP1 and prepared, step by step."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import OptimizerError
from fsdp_migrate.microbatch import microbatches
from fsdp_migrate.runtime import no_sync
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full
from tests.rank_bodies.runtime import BLOCKS


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


STEPS = 4


def _in_block(name: str, number: int) -> bool:
    return name.startswith(f"blocks.{number}.")


# Whether a parameter is trained in a step.
SCHEDULES: dict[str, Callable[[str, int], bool]] = {
    "frozen later": lambda name, step: not (_in_block(name, 0) and step >= 2),
    "thawed later": lambda name, step: not (_in_block(name, 0) and step < 2),
    "by turns": lambda name, step: not (_in_block(name, step % 2)),
    "all but the head, thawed": lambda name, step: step >= 2 or name.startswith("head."),
    "a part by turns": lambda name, step: not (_in_block(name, 0) and "up" in name and step % 2),
    "a part thawed": lambda name, step: not (_in_block(name, 0) and "up" in name and step < 2),
    "the root thawed": lambda name, step: not (name.startswith(("head", "embed")) and step < 2),
}

PRECISIONS = {
    "fp32": None,
    "bf16, fp32": MixedPrecision(torch.bfloat16, torch.float32),
    "bf16": MixedPrecision(torch.bfloat16),
}


@dataclass(frozen=True)
class Run:
    """One way to train: what is switched when, in which precision, how gradients add up, which optimizer."""

    schedule: str
    precision: str = "fp32"
    parts: str = "whole"
    optimizer: str = "all"
    strategy: str = "FULL_SHARD"
    evaluates: bool = False
    within: bool = False


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def switch(model: Any, schedule: Callable[[str, int], bool], step: int, *, flat: bool) -> list[nn.Parameter]:
    """Set what is trained in a step; return what is now trained and was not before."""
    thawed = []
    for name, param in model.named_parameters():
        # A flat parameter stands for its unit; the root's for what stands in none.
        own = clean(name).replace("_flat_param", "norm.weight" if "blocks" in name else "head.bias")
        own = own if not flat or "blocks" in own else "head.bias"
        wanted = schedule(own, step)
        if wanted != schedule(own, max(step - 1, 0)):
            thawed += [param] if wanted else []
            param.requires_grad_(wanted)
    return thawed


def _switch_back(model: Any, schedule: Callable[[str, int], bool], step: int) -> None:
    for name, param in model.named_parameters():
        param.requires_grad_(schedule(name, step))


def _optimizer(kind: str, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    if kind == "AdamW":
        return torch.optim.AdamW(params, lr=0.02, weight_decay=0.1)
    return torch.optim.SGD(params, lr=0.3, momentum=0.9, weight_decay=0.01)


def made(run: Run, kind: str) -> Any:
    """Return the model as one process has it, as FSDP1 wraps it, or prepared."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net: Any = Net()
    _switch_back(net, SCHEDULES[run.schedule], 0)
    arguments: dict[str, Any] = {**BLOCKS, "sharding_strategy": ShardingStrategy[run.strategy]}
    arguments["mixed_precision"] = PRECISIONS[run.precision]
    if kind == "one process":
        return net
    if kind == "prepared":
        return prepare_fully_shard(net, arguments)
    policy = ModuleWrapPolicy(arguments["auto_wrap_policy"])
    arguments |= {"auto_wrap_policy": policy, "device_id": torch.device("cpu")}
    return FSDP(net, use_orig_params=kind == "FSDP1", **arguments)


def train(run: Run, kind: str) -> tuple[list[float], Tensors]:
    """Train and switch; return the losses, and the parameters at the end."""
    model, schedule = made(run, kind), SCHEDULES[run.schedule]
    held = [param for param in model.parameters() if param.requires_grad or run.optimizer != "added"]
    optimizer = _optimizer(run.optimizer, held)
    losses = []
    for step in range(STEPS):
        if run.evaluates:
            with torch.no_grad():
                loss_of(model, batch(99, dist.get_rank()))
        thawed = switch(model, schedule, step, flat=kind == "FSDP1, flat")
        known = {param for group in optimizer.param_groups for param in group["params"]}
        new = [param for param in thawed if param not in known]
        if new and run.optimizer == "added":
            optimizer.add_param_group({"params": new})
        losses += step_of(model, run.parts, step, schedule if run.within else None)
        if run.within:  # the next step begins with what this one began with
            _switch_back(model, schedule, step)
        if kind == "one process":
            _average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    with FSDP.summon_full_params(model) if isinstance(model, FSDP) else nullcontext():
        return losses, {clean(name): full(param).clone() for name, param in model.named_parameters()}


def _average_gradients(model: nn.Module) -> None:
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()


def step_of(model: Any, parts: str, step: int, within: Any = None) -> list[float]:
    """Run forward and backward of a step's batch, or of its two microbatches; return the losses."""
    rank = dist.get_rank()
    if parts == "whole":
        return [_backward(model, batch(step, rank))]
    batches = [batch(2 * step + part, rank) for part in range(2)]
    if parts == "microbatches" and not isinstance(model, FSDP):
        return [_backward(model, tokens) for tokens in microbatches(model, batches, comms="every")]
    waits: Any = nullcontext()
    if parts == "no_sync" and type(model) is not Net:
        waits = model.no_sync() if isinstance(model, FSDP) else no_sync(model)
    with waits:
        losses = [_backward(model, batches[0])]
    if within is not None:
        switch(model, within, step + 1, flat=False)
    return [*losses, _backward(model, batches[1])]


def _backward(model: Any, tokens: torch.Tensor) -> float:
    loss = loss_of(model, tokens)
    loss.backward()
    return float(loss.item())


def compare(runs: Sequence[Run], reference: str) -> list[dict[str, Any]]:
    """Train each run as the reference and prepared; return both, or in which words they failed."""
    return [{kind: _outcome(run, kind) for kind in (reference, "prepared")} for run in runs]


def _outcome(run: Run, kind: str) -> tuple[list[float], Tensors] | str:
    try:
        return train(run, kind)
    except (OptimizerError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def set_on_shards() -> dict[str, list[bool]]:
    """Freeze by what an optimizer holds while units show whole parameters; look at what is trained."""
    kept = {**BLOCKS, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    model: Any = prepare_fully_shard(Net(), kept)
    shards = dict(model.named_parameters())
    found: dict[str, list[bool]] = {}

    def evaluate() -> None:
        with torch.no_grad():
            loss_of(model, batch(0, dist.get_rank()))

    evaluate()
    assert not isinstance(model.head.out.weight, DTensor)
    shards["head.out.weight"].requires_grad_(requires_grad=False)
    for step in range(2):
        _backward(model, batch(step, dist.get_rank()))
        found[f"frozen, {step}"] = [
            shards[f"head.out.{name}"].grad is not None for name in ("weight", "bias")
        ]
        model.zero_grad()
    evaluate()
    shards["head.out.weight"].requires_grad_()
    model.head.out.bias.requires_grad_(requires_grad=False)
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()
    found["sharded again"] = [shards[f"head.out.{name}"].requires_grad for name in ("weight", "bias")]
    _backward(model, batch(3, dist.get_rank()))
    found["trained"] = [shards[f"head.out.{name}"].grad is not None for name in ("weight", "bias")]
    return found
