"""Batches of microbatches: what is left in gradients, flags and buffers, also when ranks fail."""

from __future__ import annotations

import logging
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.microbatch import microbatches
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat.cpu_mends import mend_fsdp2_on_cpu, mend_gloo_averaging
from fsdp_migrate.torch_compat.fsdp2 import fsdp2_internals
from fsdp_migrate.torch_compat.param_groups import parameter_groups
from tests.models import Block, ConvNet, Head, Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from fsdp_migrate.microbatch import Comms


UNITS: dict[str, Any] = {
    "device_id": torch.device("cpu"),
    "auto_wrap_policy": ModuleWrapPolicy({Block, Head}),
    "use_orig_params": True,
}


def prepared(**arguments: Any) -> Any:
    """Return a net of three units and the root, the same on every rank."""
    torch.manual_seed(0)
    return prepare_fully_shard(Net(), {**UNITS, **arguments})


def _hybrid(**more: Any) -> dict[str, Any]:
    return {"sharding_strategy": "HYBRID_SHARD", "device_mesh": init_device_mesh("cpu", (2, 2)), **more}


_REDUCED_IN_BF16 = {"mixed_precision": MixedPrecision(reduce_dtype=torch.bfloat16)}

STRATEGIES: dict[str, Callable[[], dict[str, Any]]] = {
    "FULL_SHARD": dict,
    "SHARD_GRAD_OP": lambda: {"sharding_strategy": "SHARD_GRAD_OP"},
    "NO_SHARD": lambda: {"sharding_strategy": "NO_SHARD"},
    "forward prefetch": lambda: {"forward_prefetch": True},
    "bf16": lambda: {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)},
    "reduced in bf16": lambda: _REDUCED_IN_BF16,
    "HYBRID_SHARD": _hybrid,
    "HYBRID_SHARD, reduced in bf16": lambda: _hybrid(**_REDUCED_IN_BF16),
}


def parts_of(step: int, rank: int, count: int) -> list[torch.Tensor]:
    """Return the microbatches of one rank in one step, of one to three rows."""
    return [batch(10 * step + index, rank, rows=1 + (index + rank) % 3) for index in range(count)]


def gradients(model: nn.Module) -> Tensors:
    """Return the whole gradients of the parameters that have one."""
    return {name: full(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@dataclass
class Steps:
    """What training leaves: the gradients of each step, and how often the loop's body ran."""

    gradients: list[Tensors] = field(default_factory=list)
    bodies: int = 0


def train(
    comms: Comms, counts: Sequence[Sequence[int]], strategy: str = "FULL_SHARD", agree: bool = False
) -> Steps:
    """Train by SGD; ``counts`` holds the number of microbatches on each rank, for each step."""
    model = prepared(**STRATEGIES[strategy]())
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    steps = Steps()
    for step, numbers in enumerate(counts):
        optimizer.zero_grad()
        parts = parts_of(step, rank, numbers[rank])
        for tokens in microbatches(model, parts, comms=comms, agree=agree):
            steps.bodies += 1
            torch.autograd.backward(loss_of(model, tokens) / sum(numbers))
        steps.gradients.append(gradients(model))
        optimizer.step()
    return steps


def train_fsdp1(counts: Sequence[Sequence[int]], strategy: str, no_sync: bool) -> Steps:
    """Train under FSDP1, with and without ``no_sync``; the numbers of microbatches must be equal."""
    warnings.simplefilter("ignore")
    arguments = {**UNITS, **STRATEGIES[strategy]()}
    named = arguments.get("sharding_strategy")
    if named:
        arguments["sharding_strategy"] = ShardingStrategy[named]
    torch.manual_seed(0)
    model = FSDP(Net(), **arguments)
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    steps = Steps()
    for step, numbers in enumerate(counts):
        optimizer.zero_grad()
        parts = parts_of(step, rank, numbers[rank])
        for index, tokens in enumerate(parts):
            with model.no_sync() if no_sync and index + 1 < len(parts) else nullcontext():
                torch.autograd.backward(loss_of(model, tokens) / sum(numbers))
        with FSDP.summon_full_params(model, with_grads=True):
            found = {
                name.replace("_fsdp_wrapped_module.", ""): p.grad.clone()
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        steps.gradients.append(found)
        optimizer.step()
    return steps


def train_unsharded(sums_over: str, counts: Sequence[Sequence[int]]) -> list[Tensors]:
    """Train a plain model on the microbatches of all ranks, in one rank.

    ``sums_over`` tells over what is summed last, for sums are rounded: the ``microbatches``, the ``ranks``,
    or the ``replicas``, of which each is a half of the ranks.
    """
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for step, numbers in enumerate(counts):
        parts = [parts_of(step, rank, number) for rank, number in enumerate(numbers)]
        half = len(parts) // 2
        divisor = sum(numbers)
        if sums_over == "ranks":
            total = _mean([_summed(model, own, divisor) for own in parts])
        elif sums_over == "microbatches":
            total = _accumulated(model, parts, divisor)
        else:
            total = _mean([_accumulated(model, own, divisor) for own in (parts[:half], parts[half:])])
        for name, param in model.named_parameters():
            param.grad = total[name]
        found.append({name: grad.clone() for name, grad in total.items()})
        optimizer.step()
    return found


def _summed(model: nn.Module, parts: Sequence[torch.Tensor], divisor: int) -> Tensors:
    model.zero_grad()
    for tokens in parts:
        torch.autograd.backward(loss_of(model, tokens) / divisor)
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def _mean(by_rank: Sequence[Tensors]) -> Tensors:
    """Return the mean over ranks: of pairs, and then of pairs of pairs, as HSDP sums."""
    if len(by_rank) == 1:
        return by_rank[0]
    half = len(by_rank) // 2
    left, right = _mean(by_rank[:half]), _mean(by_rank[half:])
    return {name: (left[name] + right[name]) / 2 for name in left}


def _accumulated(model: nn.Module, parts: Sequence[Sequence[torch.Tensor]], divisor: int) -> Tensors:
    """Sum the means over ranks of each microbatch, and zeros for ranks that have it not."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index in range(max(map(len, parts))):
        for name, value in _mean([_summed(model, own[index : index + 1], divisor) for own in parts]).items():
            total[name] += value
    return total


def settings(model: nn.Module) -> list[tuple[bool, bool]]:
    """Return what each unit reduces, and whether replicas all-reduce."""
    return [group.reduces for group in parameter_groups(model)]


def settings_within(comms: Comms, strategy: str, count: int) -> tuple[list[Any], bool, bool]:
    """Return the settings in each microbatch, and whether they are back after the loop and after an error.

    One unit is set otherwise before, so that "back" is not "the default".
    """
    model = prepared(**STRATEGIES[strategy]())
    model.head.set_requires_gradient_sync(False)
    before = settings(model)
    found = []
    for tokens in microbatches(model, parts_of(0, dist.get_rank(), count), comms=comms):
        found.append(settings(model)[0])
        torch.autograd.backward(loss_of(model, tokens))
    after_loop = settings(model) == before
    try:
        for _ in microbatches(model, [1, 2], comms=comms):
            _raise()
    except KeyError:
        pass
    return found, after_loop, settings(model) == before


def _raise() -> None:
    raise KeyError("a body's own error")


def broken_off_by_break() -> tuple[bool, bool]:
    """Leave a loop by a break on all ranks and train on; tell whether settings and gradients are right."""
    model = prepared()
    before = settings(model)
    for tokens in microbatches(model, parts_of(0, 0, 3), comms="last", agree=True):
        torch.autograd.backward(loss_of(model, tokens))
        break
    are_back = settings(model) == before and not gradients(model)
    again = prepared()
    for net in (model, again):
        for tokens in microbatches(net, parts_of(1, dist.get_rank(), 2), comms="last"):
            torch.autograd.backward(loss_of(net, tokens))
    return are_back, same(gradients(model), gradients(again))


def same(found: Tensors, expected: Tensors) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def batch_norm_counters(counts: Sequence[int]) -> list[int]:
    """Train a model with BatchNorm on unequal numbers of microbatches; return its counters of batches."""
    model: Any = prepare_fully_shard(
        ConvNet(), {"device_id": "cpu", "auto_wrap_policy": {torch.nn.Sequential}}
    )
    rank = dist.get_rank()
    for tokens in microbatches(model, parts_of(0, rank, counts[rank])):
        torch.autograd.backward(loss_of(model, tokens))
    return [int(module.num_batches_tracked) for module in (model.first[1], model.second[1])]


def tied_group(counts: Sequence[int]) -> tuple[Tensors, int]:
    """Return gradients of a model with a unit of two modules, and the number of units."""
    torch.manual_seed(0)
    model = Net(tied=True)
    policy = {Block, Head, torch.nn.Embedding}
    prepare_fully_shard(model, {"device_id": "cpu", "auto_wrap_policy": policy}, tied="group")
    rank = dist.get_rank()
    for tokens in microbatches(model, parts_of(0, rank, counts[rank])):
        torch.autograd.backward(loss_of(model, tokens) / sum(counts))
    return gradients(model), len(parameter_groups(model))


def tied_unsharded(counts: Sequence[int]) -> Tensors:
    torch.manual_seed(0)
    model = Net(tied=True)
    return _accumulated(model, [parts_of(0, rank, number) for rank, number in enumerate(counts)], sum(counts))


def gathered_from_two_of_four(counts: Sequence[int]) -> Tensors:
    """Return gradients under ``reshard_after_forward=2``, whose backward gathers from a part of the ranks."""
    torch.manual_seed(0)
    model: Any = Net()
    mesh = init_device_mesh("cpu", (4,))
    for module in (*model.blocks, model.head, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=2)
    mend_fsdp2_on_cpu("cpu")
    mend_gloo_averaging(mesh, [module for module in model.modules() if isinstance(module, FSDPModule)])
    rank = dist.get_rank()
    for tokens in microbatches(model, parts_of(0, rank, counts[rank])):
        torch.autograd.backward(loss_of(model, tokens) / sum(counts))
    return gradients(model)


def what_is_replaced() -> tuple[list[bool], int]:
    """Return whether FSDP2's functions are its own before, within and after a loop, and the loop's votes."""
    model = prepared()
    counted = []
    all_reduce = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return all_reduce(*args, **kwargs)

    found = [_is_untouched()]
    dist.all_reduce = counting
    for tokens in microbatches(model, parts_of(0, 0, 2)):
        found.append(_is_untouched())
        torch.autograd.backward(loss_of(model, tokens))
    dist.all_reduce = all_reduce
    found.append(_is_untouched())
    found.extend(not _is_untouched() for _ in microbatches(model, parts_of(0, 0, 1), agree=True))
    found.append(_is_untouched())
    return found, len(counted)


def _is_untouched() -> bool:
    groups, collectives = fsdp2_internals("_fsdp_param_group"), fsdp2_internals("_fsdp_collectives")
    own = groups.foreach_all_gather is collectives.foreach_all_gather
    return own and collectives.dist is dist


def bytes_held(strategy: str) -> tuple[list[str], int]:
    """Return what is logged of the gradients that ``last`` holds, and the bytes that it really holds."""
    model = prepared(**STRATEGIES[strategy]())
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fsdp_migrate.microbatch")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    held = 0
    for index, tokens in enumerate(microbatches(model, parts_of(0, 0, 2), comms="last")):
        if index == 1:
            pending = [
                param.unsharded_accumulated_grad
                if param.unsharded_accumulated_grad is not None
                else param._unsharded_param.grad
                for group in parameter_groups(model)
                for param in group.parameters
            ]
            held = sum(grad.nbytes for grad in pending)
        torch.autograd.backward(loss_of(model, tokens))
    for _ in microbatches(model, [1, 2], comms="last"):
        pass
    return records, held


def unlike_microbatches(comms: Comms) -> Tensors:
    """Return gradients of replicas of which each microbatch uses other units and parameters of a unit."""
    model = prepared(**_hybrid())
    for index, tokens in enumerate(microbatches(model, parts_of(0, dist.get_rank(), 3), comms=comms)):
        out = model.head.norm if index == 0 else torch.nn.Identity()
        model.forward = _forward_of(model, index)
        model.head.forward = lambda x, norm=out: model.head.out(norm(x))
        torch.autograd.backward(loss_of(model, tokens))
    return gradients(model)


def _forward_of(model: Any, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Run the first block in the first microbatch, the second in the second, none in the last."""
    return lambda tokens: model.head(_blocks(model, index)(model.embed(tokens)))


def _blocks(model: Any, index: int) -> Any:
    return model.blocks[index] if index < len(model.blocks) else torch.nn.Identity()


def left_in_a_variable() -> tuple[bool, str]:
    """Leave a loop that a variable still holds, and run another; tell of the settings and of the first."""
    model = prepared()
    before = settings(model)
    first = microbatches(model, parts_of(0, 0, 3), comms="last")
    next(first)
    for tokens in microbatches(model, parts_of(1, 0, 2), comms="last"):
        torch.autograd.backward(loss_of(model, tokens))
    try:
        next(first)
    except ValueError as error:
        return settings(model) == before, str(error)
    return settings(model) == before, "no error"
