"""Trains a draw under FSDP1 and prepared, and tells how far the two are apart."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.runtime import full_state_dict, no_sync, summon_full_params
from fsdp_migrate.runtime.clipping import clip_grad_norm_
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.fuzz.draws import Draw, parse
from tests.fuzz.models import BrokenOffError, Head, Net, freeze, loss_in
from tests.fuzz.units import VOCABULARY, WIDTH, Block
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Callable


STEPS = 3
LIMIT_OF_A_DRAW = 60.0
"""Seconds; one takes about half a second on a quiet core."""

Tensors = dict[str, torch.Tensor]


@dataclass
class Run:
    """What a run left behind."""

    losses: list[float] = field(default_factory=list)
    gradients: Tensors = field(default_factory=dict)
    parameters: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    states: Tensors = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What one rank says of a draw: how far the runs are apart; 0 is bit for bit, nan is not there.

    ``fsdp1`` and ``ours`` are the errors, if any, and ``is_ours_known`` whether it is one of our own.
    """

    fsdp1: str = ""
    ours: str = ""
    is_ours_known: bool = False
    distances: dict[str, float] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)


def run_all(texts: list[str], folder: str, limit: float = LIMIT_OF_A_DRAW) -> None:
    """Train each draw under both, and write a line before and after it, so that a hang tells its draw."""
    warnings.simplefilter("ignore")
    with (Path(folder) / f"rank-{dist.get_rank()}").open("a") as file:

        def say(words: object) -> None:
            file.write(json.dumps(words) + "\n")
            file.flush()

        for text in texts:
            faulthandler.dump_traceback_later(limit, exit=True, file=2)
            say(asdict(run_both(parse(text), say)))
    faulthandler.dump_traceback_later(limit, exit=True, file=2)  # for the barrier at the end


def run_both(drawn: Draw, say: Callable[[object], None]) -> Report:
    """Train a draw under FSDP1, and prepared if FSDP1 could, and compare."""
    report = Report()
    runs = []
    for prepared in (False, True):
        name = "ours" if prepared else "fsdp1"
        say(name)
        try:
            runs.append(train(drawn, prepared=prepared))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:600]
            if not isinstance(error, FSDPMigrateError):
                words += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
            setattr(report, name, words)
            report.is_ours_known = prepared and isinstance(error, FSDPMigrateError)
            return report
    expected, found = runs
    report.codes = found.codes
    report.distances["losses"] = max(map(_apart, found.losses, expected.losses), default=0.0)
    for what in ("gradients", "parameters", "buffers", "states"):
        distance, where = _distance(getattr(expected, what), getattr(found, what))
        report.distances[what] = distance
        if where:
            report.where[what] = where
    return report


def _apart(one: float, other: float) -> float:
    return 0.0 if one == other or (math.isnan(one) and math.isnan(other)) else abs(one - other)


def _distance(expected: Tensors, found: Tensors) -> tuple[float, str]:
    """Return how far tensors are apart at most, and the name of the one that is; nan if one is missing."""
    if missing := sorted(expected.keys() ^ found.keys()):
        return math.nan, f"only in {'FSDP1' if missing[0] in expected else 'ours'}: {missing[0]}"
    worst, where = 0.0, ""
    for name, one in expected.items():
        other = found[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            words = f"{name}: {one.dtype} {list(one.shape)} / {other.dtype} {list(other.shape)}"
            return math.nan, words
        if not torch.equal(one.nan_to_num(), other.nan_to_num()):
            distance = (one.double().nan_to_num() - other.double().nan_to_num()).abs().max().item()
            if distance > worst:
                worst, where = distance, name
    return worst, where


def train(drawn: Draw, *, prepared: bool) -> Run:
    """Train for some steps; return what there is to compare."""
    torch.manual_seed(drawn.number)
    net = Net(drawn)
    freeze(net, drawn)
    arguments = arguments_of(drawn, net)
    optimizer = None
    model: Any
    if prepared:
        if drawn.built == "before":
            optimizer = _optimizer(net, drawn)
        model = prepare_fully_shard(net, arguments, optimizers=[optimizer] if optimizer else [])
    else:
        arguments.pop("cpu_offload")  # FSDP1 itself needs a GPU for it, and what it computes is the same
        model = FSDP(net, **arguments)
    optimizer = optimizer or _optimizer(model, drawn)
    training = _Training(drawn, net, model, optimizer, prepared=prepared)
    run = training.run()
    run.codes = [each.code for each in shard_plan(model).findings] if prepared else []
    return run


def arguments_of(drawn: Draw, net: Net) -> dict[str, Any]:
    """Return FSDP1's arguments."""
    arguments: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy[drawn.strategy],
        "auto_wrap_policy": _policy(drawn),
        "mixed_precision": _precisions()[drawn.precision],
        "use_orig_params": drawn.originals == "yes",
        "backward_prefetch": None if drawn.prefetch == "none" else BackwardPrefetch[drawn.prefetch],
        "forward_prefetch": drawn.forward_prefetch == "yes",
        "limit_all_gathers": drawn.limit == "yes",
        "device_id": torch.device("cpu"),
        "cpu_offload": CPUOffload(offload_params=drawn.offload == "yes"),
    }
    if drawn.ranks == 4:
        arguments["device_mesh"] = _mesh()
    first: Any = net.layers[0]
    if drawn.ignored == "a module":
        arguments["ignored_modules"] = [first.norm]
    elif drawn.ignored == "a block":
        arguments["ignored_modules"] = [first]
    elif drawn.ignored == "parameters":
        arguments["ignored_states"] = [first.up.bias, first.norm.weight]
    return arguments


@cache
def _mesh() -> DeviceMesh:
    """Make the groups once: for each of many models that takes longer than its training."""
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2))


def _policy(drawn: Draw) -> Any:
    ends = {nn.Embedding, Head} if drawn.ends == "units" else set()
    classes: dict[str, set[type[nn.Module]]] = {
        "blocks": {Block, *ends},
        "blocks and linears": {Block, nn.Linear, *ends},
        "linears": {nn.Linear, *ends},
    }
    if drawn.policy in classes:
        return ModuleWrapPolicy(classes[drawn.policy])
    if drawn.policy == "by size":
        return partial(size_based_auto_wrap_policy, min_num_params=60)
    if drawn.policy == "transformer":
        every = {type(module) for module in Net(drawn).modules() if isinstance(module, Block)}
        return partial(transformer_auto_wrap_policy, transformer_layer_cls={*every, *ends})
    if drawn.policy == "custom":
        return CustomPolicy(_choose)
    if ends:
        return partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, tuple(ends)))
    return None


def _choose(module: nn.Module) -> bool | dict[str, Any]:
    if isinstance(module, Head):
        return {"backward_prefetch": None}
    return isinstance(module, Block)


def _precisions() -> dict[str, MixedPrecision | None]:
    bf16, fp32 = torch.bfloat16, torch.float32
    return {
        "fp32": None,
        "bf16": MixedPrecision(bf16),
        "bf16, reduced in fp32": MixedPrecision(bf16, fp32),
        "reduced in bf16": MixedPrecision(None, bf16),
        "bf16 with buffers": MixedPrecision(bf16, bf16, bf16),
        "bf16, cast everywhere": MixedPrecision(bf16, cast_forward_inputs=True),
        "fp16": MixedPrecision(torch.float16),
        "bf16 grads kept": MixedPrecision(bf16, keep_low_precision_grads=True),
        "bf16, root not cast": MixedPrecision(bf16, cast_root_forward_inputs=False),
    }


_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD, nesterov and decay": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW, for-loop": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.05}),
}


def _optimizer(model: nn.Module, drawn: Draw) -> torch.optim.Optimizer:
    make, options = _OPTIMIZERS[drawn.optimizer]
    options = dict(options)
    if drawn.ignored != "nothing":
        options.pop("fused", None)
        options["foreach"] = False  # plain parameters are among sharded ones (FM106)
    named = list(model.named_parameters())
    if drawn.frozen in {"nothing", "frozen later"} and "adapter" not in drawn.blocks:
        named = [each for each in named if each[1].requires_grad]
    if drawn.groups == "one":
        return make([param for _, param in named], **options)
    groups: list[dict[str, Any]] = [
        {"params": [param for name, param in named if name.endswith("bias")], "lr": 0.02},
        {"params": [param for name, param in named if not name.endswith("bias")]},
    ]
    return make([each for each in groups if each["params"]], **options)


class _Training:
    """One run of a draw."""

    def __init__(
        self, drawn: Draw, net: Net, model: Any, optimizer: torch.optim.Optimizer, *, prepared: bool
    ) -> None:
        self.drawn, self.net, self.model, self.optimizer = drawn, net, model, optimizer
        self.prepared = prepared
        self.result = Run()

    def run(self) -> Run:
        torch.manual_seed(7 + dist.get_rank())
        for step in range(STEPS):
            self.net.step = step
            if step == 1:
                self._change_what_is_trained()
            if step == (0 if self.drawn.between.endswith("first") else 1):
                self._do_between(self.drawn.between.removesuffix(" first"))
            self._backwards(step)
            if self.drawn.clip != "no":
                self._clip()
            if step + 1 == STEPS:
                self._collect(gradients=True)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=self.drawn.zero == "none")
        self._collect(gradients=False)
        self._collect_states()
        return self.result

    def _loss(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.drawn.number + 10 * number + dist.get_rank())
        tokens = torch.randint(0, VOCABULARY, (3, 4), generator=generator)
        labels = torch.randint(0, VOCABULARY, (3, 4), generator=generator)
        extra = torch.randn(3, 4, WIDTH, generator=generator)
        extra.requires_grad_(self.drawn.inputs == "with gradients")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.drawn.autocast == "bf16"):
            loss = loss_in(self.model(tokens, extra, labels))
        self.result.losses.append(loss.item())
        return loss

    def _backwards(self, step: int) -> None:
        parts = int(self.drawn.microbatches)
        for part in range(parts):
            quiet: Any = contextlib.nullcontext()
            if self.drawn.sync == "no_sync" and part + 1 < parts:
                quiet = no_sync(self.model) if self.prepared else self.model.no_sync()
            with quiet:
                self._one_backward(100 * step + 10 * part)

    def _one_backward(self, number: int) -> None:
        in_turn = self.drawn.backward == "of two forwards in turn"
        if self.drawn.backward == "each" or (in_turn and not self.prepared):
            # FSDP1 does not reduce the second of two backwards, or frees what it needs: it is to take turns.
            for each in range(2 if in_turn else 1):
                torch.autograd.backward(self._loss(number + each))
            return
        losses = [self._loss(number), self._loss(number + 1)]
        if self.drawn.backward == "of two forwards at once":
            torch.autograd.backward(losses[0] + losses[1])
        else:
            torch.autograd.backward(losses[0])
            torch.autograd.backward(losses[1])

    def _clip(self) -> None:
        kind = math.inf if self.drawn.clip == "inf-norm" else 2.0
        norm = (
            clip_grad_norm_(self.model, 0.2, kind) if self.prepared else self.model.clip_grad_norm_(0.2, kind)
        )
        self.result.losses.append(float(norm))

    def _do_between(self, between: str) -> None:
        # With mixed precision FSDP1 reduces no gradients in the step after a forward that it saw no backward
        # of, and after a backward that broke off nothing right: it is to be as if neither had been.
        as_if_not = contextlib.nullcontext() if self.prepared else torch.no_grad()
        if between in {"evaluation", "inference", "evaluation with gradients"}:
            self.model.eval()
            context = {"evaluation": torch.no_grad, "inference": torch.inference_mode}.get(between)
            with context() if context else as_if_not:
                self._loss(500)
            self.model.train()
        elif between == "a forward without backward":
            with as_if_not:
                self._loss(501)
        elif between.startswith("an exception"):
            self.net.breaks = between.rsplit(maxsplit=1)[-1]
            with contextlib.suppress(BrokenOffError), as_if_not:
                loss = self._loss(502)
                if self.prepared:
                    torch.autograd.backward(loss)
            self.net.breaks = ""
            self.optimizer.zero_grad(set_to_none=self.drawn.zero == "none")
        elif between == "state dict":
            self._full_state()
        elif between == "whole parameters read":
            with self._whole():
                self.result.losses.append(sum(p.double().sum().item() for p in self.model.parameters()))

    def _change_what_is_trained(self) -> None:
        if self.drawn.frozen in {"thawed later", "frozen later"}:
            for param in self.net.layers[0].parameters():
                param.requires_grad_(self.drawn.frozen == "thawed later")

    def _whole(self, **options: Any) -> Any:
        if self.prepared:
            return summon_full_params(self.model, **options)
        return FSDP.summon_full_params(self.model, **options)

    def _collect(self, *, gradients: bool) -> None:
        if gradients and self.drawn.originals == "no":
            return
        if self.prepared:
            found = {
                name: full(tensor)
                for name, param in self.model.named_parameters()
                if (tensor := _shown(param, gradients=gradients)) is not None
            }
        else:
            with FSDP.summon_full_params(self.model, with_grads=gradients, writeback=False):
                found = {
                    _clean(name): tensor.detach().clone()
                    for name, param in self.model.named_parameters()
                    if (tensor := _shown(param, gradients=gradients)) is not None
                }
        if gradients:
            self.result.gradients = found
        else:
            self.result.parameters = found
            self.result.buffers = {
                _clean(name): buffer.detach().clone() for name, buffer in self.model.named_buffers()
            }

    def _full_state(self) -> dict[str, Any]:
        if self.prepared:
            state: dict[str, Any] = full_state_dict(
                self.model, self.optimizer, rank0_only=False, offload_to_cpu=False
            )
            return state
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

    def _collect_states(self) -> None:
        for param, values in self._full_state()["optimizer"]["state"].items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    self.result.states[f"{_clean(param)}.{name}"] = value.detach().clone()


def _shown(param: nn.Parameter, *, gradients: bool) -> torch.Tensor | None:
    """Return what is compared; FSDP1 shows gradients of zeros of frozen parameters in trained units."""
    if not gradients:
        return param
    return param.grad if param.requires_grad else None


def _clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")
