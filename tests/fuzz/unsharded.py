"""The third run: the draw without sharding, held against ours step by step.

FSDP1 cannot tell what is right where it was wrong itself. Then each step is trained once more, by a whole
model on each rank with gradients averaged over the ranks. It begins each step with the parameters and buffers
that ours began it with, so that the two cannot drift apart, and its optimizer is given the gradients that
ours was given. What is left between the two is rounding.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from tests.fuzz.arguments import device_of_runs, ignored_in, optimizer_of, policy_of
from tests.fuzz.models import Net, freeze
from tests.fuzz.training import GREATEST_NORM, Run, Tensors, Training, buffers_of, worst


if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.draws import Draw


_LEAST = 1e-2
"""Gradients that are smaller than this part of the model's greatest are rounded like those of that size."""


def from_unsharded(drawn: Draw, ours: Run) -> dict[str, float]:
    """Return how far ours is from the run without sharding at most, for each of what is compared."""
    torch.manual_seed(drawn.number)
    masters = Net(drawn).to(device_of_runs())
    freeze(masters, drawn)
    training = Unsharded(drawn, masters, ours)
    found = training.run()
    is_whole = len(found.losses) == len(ours.losses)
    training.keep("losses", worst(map(_apart, ours.losses, found.losses)) if is_whole else math.nan)
    for what in ("parameters", "buffers", "states"):
        training.keep(what, _apart_in_each(getattr(ours, what), getattr(found, what)))
    return training.distances


class Unsharded(Training):
    """Whole parameters on each rank, in float32; a copy in the draw's precision goes forward and backward."""

    def __init__(self, drawn: Draw, masters: Net, ours: Run) -> None:
        self.worker = Net(drawn).to(device_of_runs())
        super().__init__(drawn, self.worker, self.worker, optimizer_of(masters, drawn))
        self.masters, self.ours = masters, ours
        self.distances: dict[str, float] = {}
        ignored = set(ignored_in(drawn, masters))
        self._ignored = {name for name, param in masters.named_parameters() if param in ignored}
        self._cast()
        self._pairs = dict(self._find_pairs())
        for name, (worker, master) in self._pairs.items():
            worker.requires_grad_().register_post_accumulate_grad_hook(self._add_up(name))
            worker.requires_grad_(master.requires_grad)

    def _cast(self) -> None:
        """Give the worker the dtypes in which units compute."""
        dtype = {"fp32": None, "reduced in bf16": None, "fp16": torch.float16}.get(
            self.drawn.precision, torch.bfloat16
        )
        if dtype is None:
            return
        whole: set[nn.Parameter] = set()
        if policy_of(self.drawn) is not None:
            for module in self.worker.modules():
                if isinstance(module, nn.BatchNorm1d):
                    whole.update(module.parameters())
                    _compute_in_float32(module)
        for param in self.worker.parameters():
            if param not in whole:
                param.data = param.data.to(dtype)
        if self.drawn.precision == "bf16 with buffers":
            for buffer in self.worker.buffers():
                buffer.data = buffer.data.to(dtype) if buffer.is_floating_point() else buffer.data

    def _find_pairs(self) -> Iterator[tuple[str, tuple[nn.Parameter, nn.Parameter]]]:
        masters = dict(self.masters.named_parameters())
        for name, param in self.worker.named_parameters():
            yield name, (param, masters[name])

    def _add_up(self, name: str) -> Any:
        def add(worker: torch.Tensor) -> None:
            master = self._pairs[name][1]
            grad = worker.grad.float()  # type: ignore[union-attr]
            master.grad = grad.clone() if master.grad is None else master.grad + grad
            worker.grad = None

        return add

    def keep(self, what: str, distance: float) -> None:
        """Keep the greatest distance."""
        self.distances[what] = worst([self.distances.get(what, 0.0), distance])

    def no_sync(self) -> Any:
        return contextlib.nullcontext()

    def sum_of_parameters(self) -> float:
        return sum(master.double().sum().item() for master in self.masters.parameters())

    def begin(self, step: int) -> None:
        noted = self.ours.steps[step]
        if step:
            self.keep("parameters", _apart_in_each(noted.parameters, self.parameters()))
            self.keep("buffers", _apart_in_each(noted.buffers, buffers_of(self.worker)))
        with torch.no_grad():
            for name, (worker, master) in self._pairs.items():
                master.copy_(noted.parameters[name])
                worker.copy_(master)
            for name, buffer in self.worker.named_buffers():
                buffer.copy_(noted.buffers[name])

    def change_what_is_trained(self) -> None:
        super().change_what_is_trained()
        for worker, master in self._pairs.values():
            master.requires_grad_(worker.requires_grad)

    def end_backwards(self) -> None:
        """Average over the ranks what they share; who has none for what another has adds zeros."""
        shared = {name: master for name, (_, master) in self._pairs.items() if name not in self._ignored}
        has = torch.tensor([float(master.grad is not None) for master in shared.values()])
        dist.all_reduce(has)
        for master, number in zip(shared.values(), has.tolist(), strict=True):
            if number:
                grad = torch.zeros_like(master) if master.grad is None else master.grad
                dist.all_reduce(grad)
                master.grad = grad / dist.get_world_size()

    def clip(self, kind: float) -> Any:
        return nn.utils.clip_grad_norm_(self.masters.parameters(), GREATEST_NORM, kind)

    def gradients(self) -> Tensors:
        return {
            name: master.grad.detach().clone()
            for name, (_, master) in self._pairs.items()
            if master.grad is not None
        }

    def parameters(self) -> Tensors:
        return {name: master.detach().clone() for name, (_, master) in self._pairs.items()}

    def before_optimizer(self, step: int) -> None:
        noted = self.ours.steps[step].gradients
        self.keep("gradients", _apart_by_size(noted, self.gradients()))
        for name, (_, master) in self._pairs.items():
            master.grad = noted[name].to(master, copy=True) if name in noted else None

    def full_state(self) -> dict[str, Any]:
        names: dict[torch.Tensor, str] = {master: name for name, (_, master) in self._pairs.items()}
        state = {names[param]: values for param, values in self.optimizer.state.items()}
        return {"optimizer": {"state": state}}


def _compute_in_float32(module: nn.Module) -> None:
    """Give a module its inputs in float32, and its outputs back in their dtype, as FSDP1 does a BatchNorm."""
    dtypes = []

    def before(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        dtypes.append(args[0].dtype)
        return (args[0].float(),)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(lambda _, __, out: out.to(dtypes.pop()))


def _apart(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) / max(1.0, abs(other))


def _apart_in_each(ours: Tensors, unsharded: Tensors) -> float:
    """Return how far tensors are apart, relative to each tensor's greatest number."""
    if ours.keys() != unsharded.keys():
        return math.nan
    return worst(_relative(ours[name], other) for name, other in unsharded.items())


def _relative(one: torch.Tensor, other: torch.Tensor, least: float = 0.0) -> float:
    """Return how far tensors are apart, relative to the greatest number of the other one, or the least."""
    if one.numel() != other.numel():
        return math.nan
    one = one.to(other.device).reshape(other.shape)  # what is offloaded may be given on either
    differ = (one != other) & ~(one.isnan() & other.isnan())
    if not differ.any():
        return 0.0
    apart = (one[differ].double() - other[differ].double()).abs().max().item()
    size = max(other.abs().max().item(), least)
    return apart / size if size else math.inf


def _apart_by_size(ours: Tensors, unsharded: Tensors) -> float:
    """Return how far gradients are apart, relative to each tensor's greatest one.

    Ours may have zeros where there is no gradient without sharding: what a unit does not use is reduced with
    the rest of the unit. It may not lack any.
    """
    if unsharded.keys() - ours.keys():
        return math.nan
    least = _LEAST * worst(grad.abs().max().item() for grad in unsharded.values() if grad.numel())
    return worst(
        _relative(grad, unsharded.get(name, torch.zeros_like(grad)), least) for name, grad in ours.items()
    )
