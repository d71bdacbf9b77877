"""The loop in which a draw is trained, under FSDP1 and prepared."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

from fsdp_migrate.runtime import full_state_dict, no_sync, summon_full_params
from fsdp_migrate.runtime.clipping import clip_grad_norm_
from tests.fuzz.arguments import device_of_runs
from tests.fuzz.models import BrokenOffError, loss_in
from tests.fuzz.units import VOCABULARY, WIDTH
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from tests.fuzz.draws import Draw
    from tests.fuzz.models import Net


STEPS = 3
GREATEST_NORM = 0.2
"""What gradients are clipped to where the draw clips them."""

Tensors = dict[str, torch.Tensor]


@dataclass
class Step:
    """What a step began with, and the gradients that its optimizer was given; none of it is shared."""

    parameters: Tensors
    buffers: Tensors
    gradients: Tensors = field(default_factory=dict)


@dataclass
class Run:
    """What a run left behind; ``steps`` where they were to be noted."""

    losses: list[float] = field(default_factory=list)
    gradients: Tensors = field(default_factory=dict)
    parameters: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    states: Tensors = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class Training:
    """One run of a draw; what each way of sharding does in its own words stands in the classes below."""

    def __init__(self, drawn: Draw, net: Net, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.drawn, self.net, self.model, self.optimizer = drawn, net, model, optimizer
        self.result = Run()

    def run(self) -> Run:
        """Train for some steps; return what there is to compare."""
        torch.manual_seed(7 + dist.get_rank())
        for step in range(STEPS):
            self.net.step = step
            if step == 1:
                self.change_what_is_trained()
            self.begin(step)
            if step == (0 if self.drawn.between.endswith("first") else 1):
                self._do_between(self.drawn.between.removesuffix(" first"))
            self._backwards(step)
            self.end_backwards()
            if self.drawn.clip != "no":
                kind = math.inf if self.drawn.clip == "inf-norm" else 2.0
                self.result.losses.append(float(self.clip(kind)))
            if step + 1 == STEPS and self.drawn.originals == "yes":
                self.result.gradients = self.gradients()
            self.before_optimizer(step)
            self.optimizer.step()
            self.zero_gradients()
        self.collect()
        return self.result

    # What differs between the ways of sharding.

    def no_sync(self) -> Any:
        """Return the context in which gradients are not reduced."""
        raise NotImplementedError

    def as_if_not(self) -> Any:
        """Return the context in which FSDP1 is to forget that there was a forward."""
        return contextlib.nullcontext()

    def sum_of_parameters(self) -> float:
        """Return the sum of all whole parameters, as a script reads them."""
        raise NotImplementedError

    def clip(self, kind: float) -> Any:
        """Clip gradients; return their norm."""
        raise NotImplementedError

    def gradients(self) -> Tensors:
        """Return the whole gradients of what is trained."""
        raise NotImplementedError

    def parameters(self) -> Tensors:
        """Return the whole parameters."""
        raise NotImplementedError

    def full_state(self) -> dict[str, Any]:
        """Return the whole state dicts of model and optimizer."""
        raise NotImplementedError

    def begin(self, step: int) -> None:
        """Do what is to be done before a step."""

    def end_backwards(self) -> None:
        """Do what is to be done when a step has all its gradients."""

    def before_optimizer(self, step: int) -> None:
        """Do what is to be done before the optimizer is called."""

    def zero_gradients(self) -> None:
        """Forget the gradients as the draw does."""
        self.optimizer.zero_grad(set_to_none=self.drawn.zero == "none")

    def change_what_is_trained(self) -> None:
        """Freeze or thaw during the run."""
        if self.drawn.frozen in {"thawed later", "frozen later"}:
            for param in self.net.layers[0].parameters():
                param.requires_grad_(self.drawn.frozen == "thawed later")

    def collect(self) -> None:
        """Keep what there is to compare at the end."""
        self.result.parameters = self.parameters()
        self.result.buffers = buffers_of(self.model)
        for param, values in self.full_state()["optimizer"]["state"].items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    self.result.states[f"{clean(param)}.{name}"] = value.detach().clone()

    # What does not.

    def _loss(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.drawn.number + 10 * number + dist.get_rank())
        tokens = torch.randint(0, VOCABULARY, (3, 4), generator=generator)
        labels = torch.randint(0, VOCABULARY, (3, 4), generator=generator)
        extra = torch.randn(3, 4, WIDTH, generator=generator)
        device = device_of_runs()
        tokens, extra, labels = (each.to(device) for each in (tokens, extra, labels))
        extra.requires_grad_(self.drawn.inputs == "with gradients")
        with torch.autocast(device.type, torch.bfloat16, enabled=self.drawn.autocast == "bf16"):
            loss = loss_in(self.model(tokens, extra, labels))
        self.result.losses.append(loss.item())
        return loss

    def _backwards(self, step: int) -> None:
        parts = int(self.drawn.microbatches)
        for part in range(parts):
            is_quiet = self.drawn.sync == "no_sync" and part + 1 < parts
            with self.no_sync() if is_quiet else contextlib.nullcontext():
                self.one_backward(100 * step + 10 * part)

    def one_backward(self, number: int) -> None:
        """Go forward and backward, with one batch or with two."""
        if self.drawn.backward == "each":
            torch.autograd.backward(self._loss(number))
            return
        losses = [self._loss(number), self._loss(number + 1)]
        if self.drawn.backward == "of two forwards at once":
            torch.autograd.backward(losses[0] + losses[1])
        else:
            torch.autograd.backward(losses[0])
            torch.autograd.backward(losses[1])

    def _do_between(self, between: str) -> None:
        if between in {"evaluation", "inference", "evaluation with gradients"}:
            self.model.eval()
            context = {"evaluation": torch.no_grad, "inference": torch.inference_mode}.get(between)
            with context() if context else self.as_if_not():
                self._loss(500)
            self.model.train()
        elif between == "a forward without backward":
            with self.as_if_not():
                self._loss(501)
        elif between.startswith("an exception"):
            self.net.breaks = between.rsplit(maxsplit=1)[-1]
            with contextlib.suppress(BrokenOffError), self.as_if_not():
                self.break_off(self._loss(502))
            self.net.breaks = ""
            self.zero_gradients()
        elif between == "state dict":
            self.full_state()
        elif between == "whole parameters read":
            self.result.losses.append(self.sum_of_parameters())

    def break_off(self, loss: torch.Tensor) -> None:
        """Go backward as far as the model lets it."""
        torch.autograd.backward(loss)


class UnderFSDP1(Training):
    """Under ``FullyShardedDataParallel``."""

    def no_sync(self) -> Any:
        return self.model.no_sync()

    def as_if_not(self) -> Any:
        # With mixed precision FSDP1 reduces no gradients in the step after a forward that it saw no backward
        # of, and after a backward that broke off nothing right: it is to be as if neither had been.
        return torch.no_grad()

    def break_off(self, loss: torch.Tensor) -> None:
        pass

    def one_backward(self, number: int) -> None:
        if self.drawn.backward != "of two forwards in turn":
            super().one_backward(number)
            return
        # FSDP1 does not reduce the second of two backwards, or frees what it needs: it is to take turns.
        for each in range(2):
            torch.autograd.backward(self._loss(number + each))

    def sum_of_parameters(self) -> float:
        with FSDP.summon_full_params(self.model):
            return _sum(self.model)

    def clip(self, kind: float) -> Any:
        return self.model.clip_grad_norm_(GREATEST_NORM, kind)

    def gradients(self) -> Tensors:
        # It shows gradients of zeros of frozen parameters in trained units.
        with FSDP.summon_full_params(self.model, with_grads=True, writeback=False):
            return {
                clean(name): param.grad.detach().clone()
                for name, param in self.model.named_parameters()
                if param.grad is not None and param.requires_grad
            }

    def parameters(self) -> Tensors:
        with FSDP.summon_full_params(self.model, writeback=False):
            return {clean(name): param.detach().clone() for name, param in self.model.named_parameters()}

    def full_state(self) -> dict[str, Any]:
        options = {"rank0_only": False, "offload_to_cpu": False}
        with FSDP.state_dict_type(
            self.model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(**options),
            FullOptimStateDictConfig(**options),
        ):
            return {
                "model": self.model.state_dict(),
                "optimizer": FSDP.optim_state_dict(self.model, self.optimizer),
            }


class Prepared(Training):
    """Prepared by ``prepare_fully_shard``; notes its steps if it is told to."""

    notes_steps = False

    def no_sync(self) -> Any:
        return no_sync(self.model)

    def sum_of_parameters(self) -> float:
        with summon_full_params(self.model):
            return _sum(self.model)

    def clip(self, kind: float) -> Any:
        return clip_grad_norm_(self.model, GREATEST_NORM, kind)

    def gradients(self) -> Tensors:
        return {
            name: full(param.grad)
            for name, param in self._named()
            if param.grad is not None and param.requires_grad
        }

    def parameters(self) -> Tensors:
        return {name: full(param) for name, param in self._named()}

    def full_state(self) -> dict[str, Any]:
        state: dict[str, Any] = full_state_dict(
            self.model, self.optimizer, rank0_only=False, offload_to_cpu=False
        )
        return state

    def begin(self, step: int) -> None:
        del step
        if self.notes_steps:
            self.result.steps.append(Step(self.parameters(), buffers_of(self.model)))

    def before_optimizer(self, step: int) -> None:
        if self.notes_steps:
            # All that the optimizer is given, also of what is frozen by now.
            self.result.steps[step].gradients = {
                name: full(param.grad) for name, param in self._named() if param.grad is not None
            }

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters())


def _sum(model: nn.Module) -> float:
    return sum(param.double().sum().item() for param in model.parameters())


def buffers_of(model: nn.Module) -> Tensors:
    """Return copies of a model's buffers, by their plain names."""
    return {clean(name): buffer.detach().clone() for name, buffer in model.named_buffers()}


def worst(distances: Iterable[float]) -> float:
    """Return the greatest distance, and nan if there is one."""
    every = list(distances)
    return math.nan if any(map(math.isnan, every)) else max(every, default=0.0)


def clean(name: str) -> str:
    """Return a name without what FSDP1 puts into it."""
    return name.replace("_fsdp_wrapped_module.", "")
