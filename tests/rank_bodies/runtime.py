"""Accumulation, clipping, methods and scaling under FSDP1, under FSDP2, and on one process as reference."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import FSDPMigrateError, UnsupportedFeatureError
from fsdp_migrate.runtime import clip_grad_norm_, grad_scaler, no_sync, register_forward_methods
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Block, Head, Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, arguments_of, full, model_of


if TYPE_CHECKING:
    from collections.abc import Callable


BLOCKS = {"device_id": "cpu", "auto_wrap_policy": {Block}}


def fsdp1(case: str, **more: Any) -> Any:
    """Wrap the model of a case by FSDP1."""
    warnings.simplefilter("ignore")
    return FSDP(model_of(case), **{**arguments_of(case), **more})


def prepared(case: str = "blocks", **more: Any) -> Any:
    """Prepare the same model with the same arguments."""
    return prepare_fully_shard(model_of(case), {**arguments_of(case), **more})


def whole_of(model: nn.Module, *, grads: bool = False) -> Tensors:
    """Return parameters or gradients of a model of either kind, whole."""
    wrapped = isinstance(model, FSDP)
    context = FSDP.summon_full_params(model, with_grads=grads) if wrapped else nullcontext()
    with context:
        return {
            name.replace("_fsdp_wrapped_module.", ""): full(value)
            for name, param in model.named_parameters()
            if (value := param.grad if grads else param) is not None
        }


def both(case: str, use: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Do the same with the FSDP1 model and with the prepared one."""
    return use(fsdp1(case)), use(prepared(case))


def backward(model: nn.Module, step: int, rank: int | None = None) -> float:
    """Run one backward of this rank's batch; return the loss."""
    loss = loss_of(model, batch(step, dist.get_rank() if rank is None else rank))
    torch.autograd.backward(loss)
    return loss.item()


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the class and the text of the error that a call raises."""
    try:
        call()
    except (FSDPMigrateError, NotImplementedError) as error:
        return type(error).__name__, str(error)
    return "no error", ""


def each(body: Callable[..., Any], cases: list[tuple[Any, ...]]) -> list[Any]:
    """Do every case on the same ranks: one start of the ranks is dearer than a case."""
    return [result_or_refusal(body, *case) for case in cases]


def result_or_refusal(body: Callable[..., Any], *case: Any) -> Any:
    """Return what a body does, or the words in which this torch is refused."""
    try:
        return body(*case)
    except UnsupportedFeatureError as refusal:
        return str(refusal)


# Accumulation


def _accumulate(model: Any) -> tuple[list[float], Tensors, Tensors]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        with model.no_sync() if isinstance(model, FSDP) else no_sync(model):
            losses += [backward(model, 10 * step + part) for part in range(2)]
        losses.append(backward(model, 10 * step + 2))
        if step == 0:
            optimizer.step()
    return losses, whole_of(model, grads=True), whole_of(model)


def accumulate(case: str) -> tuple[Any, Any]:
    """Train for a step with two microbatches that are not reduced, and accumulate for another."""
    return both(case, _accumulate)


def _throw_away(model: Any, how: str) -> tuple[list[float], Tensors, Tensors]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(2):
        with model.no_sync() if isinstance(model, FSDP) else no_sync(model):
            losses.append(100 * backward(model, 10 * step))
        if how == "model":
            model.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=how != "zeros")
        with model.no_sync() if isinstance(model, FSDP) else no_sync(model):
            losses.append(backward(model, 10 * step + 1))
        losses.append(backward(model, 10 * step + 2))
        optimizer.step()
        optimizer.zero_grad()
    with model.no_sync() if isinstance(model, FSDP) else no_sync(model):
        losses.append(backward(model, 30))  # the epoch ends in the middle of a window
    optimizer.zero_grad()
    losses.append(backward(model, 31))
    return losses, whole_of(model, grads=True), whole_of(model)


def throw_away(case: str, how: str) -> tuple[Any, Any]:
    """Zero gradients between microbatches that are not reduced, and after a window that is not full."""
    return both(case, lambda model: _throw_away(model, how))


def fail() -> None:
    """Fail in a context."""
    raise KeyError


def _flags(model: nn.Module) -> list[tuple[bool, bool]]:
    found = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group: Any = module._get_fsdp_state()._fsdp_param_group
            found.append((group.reduce_grads, group.all_reduce_grads))
    return found


def synchronisation_flags() -> dict[str, Any]:
    """Return the units' flags in, between and after contexts, one of which fails."""
    model = prepared()
    model.blocks[0].set_requires_gradient_sync(False)
    model.blocks[1].set_requires_all_reduce(False)
    found: dict[str, Any] = {"before": _flags(model)}
    with no_sync(model):
        with no_sync(model.blocks):
            found["inner"] = _flags(model)
        found["outer"] = _flags(model)
        backward(model, 0)
        found["reduced"] = [name for name, param in model.named_parameters() if param.grad is not None]
    found["after"] = _flags(model)
    with suppress(KeyError), no_sync(model):
        fail()
    found["after an error"] = _flags(model)
    found["no unit"] = error_of(lambda: no_sync(Net()).__enter__())
    return found


# Clipping


def _several_meshes() -> dict[str, Any]:
    policy = CustomPolicy(
        lambda module: (
            {"sharding_strategy": ShardingStrategy.NO_SHARD}
            if isinstance(module, Head)
            else isinstance(module, Block)
        )
    )
    return {"auto_wrap_policy": policy}


def _clip_case(kind: str) -> tuple[Any, Any]:
    more = _several_meshes() if kind.startswith("several meshes") else {}
    if kind == "several meshes":
        return fsdp1("blocks", **more), prepared("blocks", **more)
    if kind in IGNORING:
        old: Any = model_of("blocks")
        new: Any = model_of("blocks")
        arguments = {**arguments_of("blocks"), **more}
        wrapped = FSDP(old, **{**arguments, "ignored_modules": [IGNORING[kind](old)]})
        return wrapped, prepare_fully_shard(new, {**arguments, "ignored_modules": [IGNORING[kind](new)]})
    return fsdp1(kind), prepared(kind)


IGNORING: dict[str, Callable[[Any], nn.Module]] = {
    "ignored parameters": lambda model: model.head,
    "several meshes and plain": lambda model: model.blocks[1].up,
}


def _plain_gradients(batches: list[int]) -> Tensors:
    model = model_of("blocks")
    for rank in batches:
        torch.autograd.backward(loss_of(model, batch(0, rank)) / len(batches))
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def clip(kind: str, norm_type: float, max_norm: float) -> dict[str, Any]:
    """Clip the gradients of a FSDP1 model, of a prepared one and of a plain one."""
    warnings.simplefilter("ignore")
    old, new = _clip_case(kind)
    # Nobody reduces gradients of ignored parameters, so all ranks have the same data.
    rank = 0 if kind in IGNORING else None
    backward(old, 0, rank)
    backward(new, 0, rank)
    reference = _plain_gradients([0] if rank == 0 else list(range(dist.get_world_size())))
    found = clip_grad_norm_(new, max_norm, norm_type)
    expected = old.clip_grad_norm_(max_norm, norm_type)
    grads = list(reference.values())
    return {
        "type": type(found) is torch.Tensor and found.ndim == 0,
        "norm": found.item(),
        "FSDP1": expected.item(),
        "plain": torch.nn.utils.get_total_norm(grads, norm_type).item(),
        "gradients": whole_of(new, grads=True),
        "FSDP1 gradients": whole_of(old, grads=True),
        "plain gradients": reference,
    }


def clip_oddly() -> dict[str, Any]:
    """Clip what is not there, not finite, there once only, in low precision, and by wrong numbers."""
    model = prepared()
    params = list(model.parameters())
    found: dict[str, Any] = {"nothing": clip_grad_norm_(model, 1.0).item()}
    backward(model, 0)
    whole = clip_grad_norm_(model, math.inf).item()
    found["generator"] = clip_grad_norm_((p for p in params), math.inf).item() == whole
    found["twice"] = clip_grad_norm_([*params, *params], math.inf).item() == whole
    one = params[0]
    found["one"] = clip_grad_norm_(one, math.inf).item() - full(one.grad).norm().item()
    before = whole_of(model, grads=True)
    found["one by one"] = clip_grad_norm_(model, whole / 2, foreach=False).item() == whole
    after = whole_of(model, grads=True)
    found["halved"] = max((before[n] / 2 - after[n]).abs().max().item() for n in before)
    if dist.get_rank() == 1:
        params[1].grad = None
    found["missing on one rank"] = clip_grad_norm_(model, math.inf).item()
    local = one.grad.to_local()
    if dist.get_rank() == 1:
        local[0, 0] = math.inf
    kept = local.clone()
    found["infinite"] = error_of(lambda: clip_grad_norm_(model, 1.0, error_if_nonfinite=True))
    found["untouched"] = torch.equal(one.grad.to_local(), kept)
    found["norm_type"] = error_of(lambda: clip_grad_norm_(model, 1.0, norm_type=0.0))
    found["max_norm"] = error_of(lambda: clip_grad_norm_(model, -1.0))
    return found


def clip_bfloat16() -> tuple[float, str]:
    """Clip bfloat16 gradients of the norms 257, which bfloat16 has not, and 129; their sum it has."""
    model = nn.Sequential(nn.Linear(257, 1, bias=False), nn.Linear(129, 1, bias=False)).bfloat16()
    prepare_fully_shard(model, {"device_id": "cpu"})
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    norm = clip_grad_norm_(model, math.inf, norm_type=1.0)
    return norm.item(), str(norm.dtype)


# Methods


class Speaker(Net):
    """A net with methods other than forward, of its own and of a module that is no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    def generate(self, tokens: torch.Tensor, steps: int) -> torch.Tensor:
        """Append the likeliest token, by calling the model."""
        for _ in range(steps):
            best = self(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, best], dim=1)
        return tokens

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Use the root's parameters, and call units."""
        x = nn.functional.embedding(tokens, self.embed.weight)
        for block in self.blocks:
            x = block(x)
        return x @ self.embed.weight.t()


class Pool(nn.Module):
    """A module that no policy selects."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.linspace(-1.0, 1.0, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """Use a parameter of the root unit."""
        return x @ self.query


def _speaker() -> Any:
    torch.manual_seed(0)
    return Speaker()


def call_methods() -> dict[str, Any]:
    """Call methods of a plain model and of a prepared one, with their gradients."""
    tokens = batch(0, 0)
    results: list[Any] = []
    sharded: set[str] = set()
    methods = ("generate", "encode", "pool.score")
    for model, registered in ((_speaker(), ()), (prepare_fully_shard(_speaker(), BLOCKS), 2 * methods)):
        for method in registered:  # the second time changes nothing
            register_forward_methods(model, method)
        encoded = model.encode(tokens)
        torch.autograd.backward(encoded.square().mean() + model.pool.score(encoded[..., :6]).mean())
        with torch.no_grad():
            spoken = model.generate(tokens, 4)
        sharded = {name for name, param in model.named_parameters() if isinstance(param, DTensor)}
        results.append((encoded.detach(), spoken, whole_of(model, grads=True), model.encode.__name__))
    unregistered = prepare_fully_shard(_speaker(), BLOCKS)
    try:
        unregistered.encode(tokens)
        plain_call = "works"
    except Exception as error:
        plain_call = type(error).__name__
    return {"plain": results[0], "prepared": results[1], "sharded": len(sharded), "unregistered": plain_call}


def register_nothing() -> list[tuple[str, str]]:
    """Register methods that do not exist, or that no unit holds."""
    model = prepare_fully_shard(_speaker(), BLOCKS)
    above = nn.ModuleDict({"model": model})
    wrong: list[tuple[nn.Module, str]] = [(model, "speak"), (model, "pol.score"), (Net(), "forward")]
    found = [error_of(partial(register_forward_methods, where, name)) for where, name in wrong]
    found.append(error_of(lambda: register_forward_methods(above, "keys")))
    return found


# Scaling


def _scaled_steps(model: Any, scaler: Any, optimizer: Any) -> list[tuple[float, Tensors]]:
    """Step five times; in the second and third one rank's gradients overflow."""
    states = []
    for step in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, dist.get_rank()))
        torch.autograd.backward(scaler.scale(loss))
        if step in (1, 2) and dist.get_rank() == 1:
            grads = [param.grad for param in model.parameters() if param.grad is not None]
            local = grads[-1].to_local() if isinstance(grads[-1], DTensor) else grads[-1]
            local.view(-1)[0] = math.inf if step == 1 else math.nan
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        states.append((scaler.get_scale(), whole_of(model)))
    return states


def scale(case: str) -> tuple[Any, Any]:
    """Train by FSDP1 and its scaler, and prepared with ours."""
    results = []
    for model, make in ((fsdp1(case), ShardedGradScaler), (prepared(case), grad_scaler)):
        scaler: Any = make("cpu", init_scale=1024.0, growth_interval=2)
        results.append(_scaled_steps(model, scaler, torch.optim.SGD(model.parameters(), lr=0.3)))
    return results[0], results[1]


def scale_mixed(overflow: str, optimizer: str) -> dict[str, Any]:
    """Step with sharded and plain parameters, one of which overflows on rank 1 only."""
    model: Any = model_of("blocks")
    prepare_fully_shard(model, {**BLOCKS, "ignored_modules": [model.head.out]})
    groups = [[p for p in model.parameters() if isinstance(p, DTensor) is kind] for kind in (False, True)]
    if optimizer == "one":
        groups = [groups[0] + groups[1]]
    steps: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(group, lr=0.5, fused=True)
        if optimizer == "fused"
        else torch.optim.SGD(group, lr=0.5, foreach=False)
        for group in groups
    ]
    scaler = grad_scaler("cpu", init_scale=4.0)
    before = whole_of(model)
    torch.autograd.backward(scaler.scale(loss_of(model, batch(0, 0))))
    if dist.get_rank() == 1 and overflow != "none":
        param: Any = model.head.out.weight if overflow == "plain" else model.embed.weight
        (param.grad.to_local() if overflow == "sharded" else param.grad).view(-1)[0] = math.inf
    for each in steps:
        scaler.step(each)
    scaler.update()
    after = whole_of(model)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    return {
        "scale": scaler.get_scale(),
        "plain moved": "head.out.weight" in moved,
        "sharded moved": "embed.weight" in moved,
    }


def scale_float16() -> tuple[float, bool]:
    """Step a model that is float16 itself; torch's own scaler refuses such gradients."""
    model = prepare_fully_shard(nn.Linear(4, 3).half(), {"device_id": "cpu"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = whole_of(model)
    scaler = grad_scaler("cpu", init_scale=8.0)
    torch.autograd.backward(scaler.scale(model(torch.ones(2, 4).half()).float().mean()))
    scaler.unscale_(optimizer)
    grad: Any = model.bias.grad
    scaler.step(optimizer)
    return full(grad).sum().item(), not torch.equal(whole_of(model)["bias"], before["bias"])
