"""The same training with and without activation checkpointing, under FSDP1 and under FSDP2."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing as torch_apply,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.multiprocessing.reductions import StorageWeakRef

from fsdp_migrate.activation_checkpointing import apply_activation_checkpointing
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.models import Block, Net, batch, loss_of
from tests.rank_bodies.parity import Run, full


if TYPE_CHECKING:
    from collections.abc import Callable


PREFIX = "_checkpoint_wrapped_module."


class Layer(Block):
    """A block with dropout that counts its forwards, and watches the memory of what it computed within."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__(width, inner)
        self.calls = 0
        self.within: StorageWeakRef | None = None
        self.input: StorageWeakRef | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = torch.tanh(self.up(self.norm(x)))
        self.within = StorageWeakRef(hidden.untyped_storage())
        self.input = StorageWeakRef(x.untyped_storage())
        out: torch.Tensor = x + nn.functional.dropout(self.down(hidden), 0.3) * self.scale.to(x.dtype)
        return out


def layered(seed: int = 0) -> Any:
    """Return a net of two such layers."""
    torch.manual_seed(seed)
    net: Any = Net()
    for index in range(2):
        net.blocks[index] = Layer(6, 17)
    return net


@dataclass(frozen=True)
class Case:
    """What is checkpointed, with which options, and which classes are units."""

    which: tuple[type[nn.Module], ...] = (Layer,)
    options: tuple[tuple[str, Any], ...] = ()
    units: tuple[type[nn.Module], ...] = (Layer,)
    low: bool = False


CASES = {
    "layers": Case(),
    "reentrant": Case(options=(("reentrant", True),)),
    "inputs on the CPU": Case(options=(("offload_to_cpu", True),)),
    "layers in bf16": Case(low=True),
    "units within a checkpointed layer": Case(units=(Layer, nn.Linear)),
    "checkpointed parts of a unit": Case(which=(nn.Linear,)),
    "a part and the whole": Case(which=(Layer, nn.Linear)),
    "activations on the CPU": Case(options=(("offload_to_cpu", True), ("recompute", False))),
}


@dataclass
class Trained:
    """A run, how often each layer ran in it, and whether memory outlived the last forward."""

    run: Run
    calls: list[int]
    within_kept: bool
    inputs_kept: bool


def _arguments(case: Case) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy(set(case.units)),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    if case.low:
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    return arguments


def _train(model: nn.Module, steps: int = 3) -> tuple[list[float], bool, bool]:
    torch.manual_seed(7 + dist.get_rank())  # dropout
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    losses, within, inputs = [], False, False
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, dist.get_rank()))
        within = any(layer.within is not None and not layer.within.expired() for layer in layers)
        inputs = any(layer.input is not None and not layer.input.expired() for layer in layers[:1])
        torch.autograd.backward(loss)
        if step + 1 < steps:
            optimizer.step()
        losses.append(loss.item())
    return losses, within, inputs


def _calls(model: nn.Module) -> list[int]:
    return [module.calls for module in model.modules() if isinstance(module, Layer)]


def train_fsdp2(name: str, *, checkpointed: bool) -> Trained:
    """Train a prepared net."""
    case = CASES[name]
    model = layered()
    choice = {"which": case.which, **dict(case.options)} if checkpointed else None
    prepare_fully_shard(model, _arguments(case), activation_checkpointing=choice)
    losses, within, inputs = _train(model)
    parameters = {key: full(param) for key, param in model.named_parameters()}
    gradients = {key: full(p.grad) for key, p in model.named_parameters() if p.grad is not None}
    return Trained(Run(losses, gradients, parameters), _calls(model), within, inputs)


def train_fsdp1(name: str) -> Trained:
    """Train under FSDP1, with torch's own function, as FSDP1 scripts call it: after the wrap."""
    warnings.simplefilter("ignore")
    case = CASES[name]
    model = FSDP(layered(), **_arguments(case))
    reentrant = dict(case.options).get("reentrant", False)
    impl = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    torch_apply(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=impl),
        check_fn=lambda module: isinstance(module, case.which),
    )
    losses, within, inputs = _train(model)

    def clean(key: str) -> str:
        return key.replace("_fsdp_wrapped_module.", "").replace(PREFIX, "")

    with FSDP.summon_full_params(model, with_grads=True):
        parameters = {clean(key): param.detach().clone() for key, param in model.named_parameters()}
        gradients = {clean(key): p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    return Trained(Run(losses, gradients, parameters), _calls(model), within, inputs)


def train_three(name: str) -> tuple[Trained, Trained, Trained]:
    """Train under FSDP1 with checkpointing, and under FSDP2 without and with it."""
    return train_fsdp1(name), train_fsdp2(name, checkpointed=False), train_fsdp2(name, checkpointed=True)


def train_all() -> dict[str, tuple[Trained, ...]]:
    """Do so in every case; one start of the ranks is dearer than a case."""
    return {name: train_three(name) for name in CASES}


def wrapped_before(reentrant: bool) -> dict[str, Any]:
    """Give FSDP1 and FSDP2 a model whose layers torch's ``checkpoint_wrapper`` wraps already."""
    warnings.simplefilter("ignore")
    impl = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    models: list[Any] = []
    for _ in range(2):
        model = layered()
        for index, layer in enumerate(model.blocks):
            model.blocks[index] = checkpoint_wrapper(layer, checkpoint_impl=impl)
        models.append(model)
    reference = FSDP(models[0], **_arguments(CASES["layers"]))
    found = prepare_fully_shard(models[1], _arguments(CASES["layers"]), activation_checkpointing=Layer)
    units = [
        [
            name.replace("_fsdp_wrapped_module", "").replace("..", ".").strip(".")
            for name, module in model.named_modules()
            if isinstance(module, kind)
        ]
        for model, kind in ((reference, FSDP), (found, FSDPModule))
    ]
    losses = [_train(model)[0] for model in (reference, found)]
    with FSDP.summon_full_params(reference):
        expected = [param.detach().clone() for param in reference.parameters()]
    same = all(torch.equal(full(p), q) for p, q in zip(found.parameters(), expected, strict=True))
    return {
        "units": units,
        "planned": sorted(unit.fqn for unit in shard_plan(found).units),
        "losses": losses,
        "parameters": same,
        "calls": [_calls(reference), _calls(found)],
        "keys": sorted(key for key in found.state_dict() if PREFIX in key),
    }


def names_after() -> dict[str, Any]:
    """Prepare with checkpointing; return every kind of name that a user sees, beside the plain model's."""
    plain, sharded, model = layered(), layered(), layered()
    prepare_fully_shard(sharded, _arguments(CASES["layers"]))
    prepare_fully_shard(model, _arguments(CASES["layers"]), activation_checkpointing=True)
    return {
        "state_dict": list(model.state_dict()) == list(plain.state_dict()),
        "parameters": [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()],
        "modules": [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()],
        "class": isinstance(model.blocks[0], Layer),
        "attributes": [
            key for key in vars(model.blocks[0]).keys() - vars(sharded.blocks[0]).keys() if "_key_" not in key
        ],
    }


def compiled_in_between(how: str) -> tuple[list[float], list[float], int]:
    """Checkpoint, compile and shard, in this order; return losses without and with compiling, and graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend

    losses = []
    counter = CompileCounterWithBackend("aot_eager")  # type: ignore[no-untyped-call,unused-ignore]
    for compiled in (False, True):
        torch.manual_seed(0)
        model: Any = Net()
        apply_activation_checkpointing(model, Block)
        for index, block in enumerate(model.blocks if compiled else ()):
            if how == "in place":
                block.compile(backend=counter, fullgraph=True)
            else:
                model.blocks[index] = torch.compile(block, backend=counter, fullgraph=True)
        prepare_fully_shard(model, {"auto_wrap_policy": {Block}, "device_id": "cpu"})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step, dist.get_rank()))
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses[:3], losses[3:], counter.frame_count


def _sharded(model: Any) -> None:
    prepare_fully_shard(model, _arguments(CASES["layers"]))


def _sharded_by_fsdp1(model: Any) -> None:
    model.blocks[0] = FSDP(model.blocks[0], device_id=torch.device("cpu"))


WRONG_ORDERS: dict[str, Callable[[Any], None]] = {
    "after fully_shard": _sharded,
    "after FSDP1": _sharded_by_fsdp1,
}


def wrong_order(name: str) -> tuple[str, str, bool]:
    """Checkpoint what is sharded already; return the error, and whether nothing changed."""
    warnings.simplefilter("ignore")
    model = layered()
    WRONG_ORDERS[name](model)
    try:
        apply_activation_checkpointing(model, Layer)
    except FSDPMigrateError as error:
        untouched = not any("forward" in vars(module) for module in model.modules())
        return type(error).__name__, str(error), untouched
    return "no error", "", False


def refused_in_prepare() -> tuple[str, bool]:
    """Ask for sharding that is right and checkpointing that is not, and the other way round."""
    texts, untouched = [], True
    for arguments, choice in (
        ({}, True),
        ({"auto_wrap_policy": {nn.Conv2d}}, Layer),
    ):
        model = layered()
        try:
            prepare_fully_shard(model, {"device_id": "cpu", **arguments}, activation_checkpointing=choice)
        except FSDPMigrateError as error:
            texts.append(str(error))
        untouched &= not any("forward" in vars(m) or isinstance(m, FSDPModule) for m in model.modules())
    return "\n".join(texts), untouched


def chosen_after_sharding() -> dict[str, tuple[int, int]]:
    """Return how many layers torch wraps behind sharding, under FSDP1 and here, by what its check asks."""
    checks: dict[str, Callable[[nn.Module], bool]] = {
        "isinstance": lambda module: isinstance(module, Block),
        "the class": lambda module: type(module) is Block,
        "its name": lambda module: type(module).__name__ in ("Block", "Other"),
        "a part of its name": lambda module: "Block" in type(module).__name__,
        "the start of its name": lambda module: type(module).__name__.startswith("Block"),
    }
    policy, device = ModuleWrapPolicy({Block}), torch.device("cpu")
    found = {}
    for name, check in checks.items():
        old = FSDP(Net(), auto_wrap_policy=policy, device_id=device)
        new = prepare_fully_shard(Net(), {"auto_wrap_policy": policy, "device_id": device})
        numbers = []
        for model in (old, new):
            torch_apply(model, check_fn=check)
            numbers.append(sum(type(module).__name__ == "CheckpointWrapper" for module in model.modules()))
        found[name] = (numbers[0], numbers[1])
    return found
