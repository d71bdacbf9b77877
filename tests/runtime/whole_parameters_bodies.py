"""Whole parameters, seen and written, under FSDP1 and under FSDP2."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
)
from torch.distributed.tensor import DTensor

from fsdp_migrate.runtime import (
    summon_full_params,
)
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Net, batch
from tests.rank_bodies.parity import Tensors, full
from tests.rank_bodies.runtime import BLOCKS, backward, error_of, fail, fsdp1, prepared, whole_of


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def _summon(model: Any, **arguments: Any) -> AbstractContextManager[None]:
    if not isinstance(model, FSDP):
        return summon_full_params(model, **arguments)
    context: AbstractContextManager[None] = FSDP.summon_full_params(model, **arguments)
    return context


def _both(case: str = "blocks") -> list[Any]:
    return [fsdp1(case), prepared(case)]


def _clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def what_is_seen(case: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each model shows in the context, and that only whole tensors count as seen."""
    shapes = {name: param.shape for name, param in Net().named_parameters()}
    found = []
    for model in _both(case):
        backward(model, 0)
        seen: dict[str, Any] = {}
        # FSDP1 cannot offload to a CPU that is the device.
        arguments = {**asked, "offload_to_cpu": False} if isinstance(model, FSDP) else asked
        with _summon(model, **arguments):
            for name, param in model.named_parameters():
                own = _clean(name)
                if param.shape == shapes[own] and not isinstance(param, DTensor):
                    # FSDP1 shows small gradients of the last step whether asked or not
                    grad = param.grad if arguments.get("with_grads") else None
                    seen[own] = (param.detach().clone(), None if grad is None else grad.clone())
        seen["afterwards"] = all(isinstance(p, DTensor) for p in model.parameters())
        found.append(seen)
    found[0].pop("afterwards")
    return found


def write_and_train(case: str, discard: bool = True) -> list[tuple[list[float], Tensors, Tensors]]:
    """Change parameters and gradients in the context, then step and go on.

    Without ``discard`` FSDP1 is spared ``writeback=False``, which writes where nothing is sharded.
    """
    found = []
    for model in _both(case):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        backward(model, 0)
        with torch.no_grad(), _summon(model, with_grads=True):
            for param in model.parameters():
                param.mul_(1.25)
                assert param.grad is not None
                param.grad.add_(0.5)
        grads = whole_of(model, grads=True)
        optimizer.step()
        optimizer.zero_grad()  # FSDP1 sums in another order where it reduces a sum again, in NO_SHARD
        losses = [backward(model, 1)]
        optimizer.step()
        with torch.no_grad(), _summon(model):
            moved = model.to("cpu")
            part = moved.blocks[0]
            part.load_state_dict({name: value * 1.5 for name, value in part.state_dict().items()})
        optimizer.zero_grad()
        losses.append(backward(model, 2))
        optimizer.step()
        with suppress(KeyError), torch.no_grad(), _summon(model):
            for name, param in model.named_parameters():
                if "bias" in name:
                    param.zero_()
            fail()  # under FSDP1 what was written until then is kept
        if discard or not isinstance(model, FSDP):
            with torch.no_grad(), _summon(model, writeback=False):
                next(model.parameters()).fill_(100.0)
        losses.append(backward(model, 2))
        found.append((losses, grads, whole_of(model)))
    return found


def freeze_and_train() -> list[tuple[list[bool], Tensors, list[str]]]:
    """Freeze and mark all but a head in the context, train, and thaw a block in one that keeps nothing."""
    found = []
    for model in _both():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with _summon(model):
            for name, param in model.named_parameters():
                param.requires_grad = "head" in name
                param.mark = "head" if param.requires_grad else "body"
        backward(model, 0)
        optimizer.step()
        optimizer.zero_grad()
        with _summon(model, writeback=False):
            model.blocks[0].requires_grad_(True)
            marks = [param.mark for param in model.parameters()]
        backward(model, 1)
        optimizer.step()
        marks += [param.mark for param in model.parameters()]
        found.append(([param.requires_grad for param in model.parameters()], whole_of(model), marks))
    return found


def write_after_evaluation() -> tuple[float, float]:
    """Write after a forward without a backward, which leaves the root's whole parameters in use."""
    model = prepared()
    tokens = batch(0, 0)
    with torch.no_grad():
        model(tokens)
        with summon_full_params(model):
            model.head.out.weight.zero_()
            model.head.out.bias.zero_()
        return model(tokens).abs().max().item(), full(model.head.out.weight).abs().max().item()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        torch.manual_seed(module.in_features)
        nn.init.xavier_normal_(module.weight)


def apply_function() -> tuple[Tensors, Tensors]:
    """Initialise by ``apply``: FSDP1's shows whole parameters, ours does in the context."""
    old, new = _both()
    old.apply(_initialise)
    with summon_full_params(new):
        new.apply(_initialise)
    return whole_of(old), whole_of(new)


def summon_ties() -> dict[str, Any]:
    """Write through one of two names of a parameter; replace a parameter, or its shape."""
    model = prepare_fully_shard(Net(tied=True), BLOCKS)
    found: dict[str, Any] = {}
    with torch.no_grad(), summon_full_params(model):
        found["tied inside"] = model.embed.weight is model.head.out.weight
        model.embed.weight.fill_(2.0)
        model.head.norm.weight = nn.Parameter(torch.full((6,), 3.0))
    found["tied after"] = model.embed.weight is model.head.out.weight
    found["written"] = full(model.head.out.weight).unique().tolist()
    found["replaced"] = full(model.head.norm.weight).unique().tolist()

    def replace(module: Any, shape: tuple[int, ...]) -> None:
        with summon_full_params(model):
            module.weight = nn.Parameter(torch.zeros(shape))

    found["untied"] = error_of(lambda: replace(model.embed, (13, 6)))
    found["shape"] = error_of(lambda: replace(model.blocks[0].norm, (7,)))
    found["sharded"] = all(isinstance(param, DTensor) for param in model.parameters())
    return found


def summon_wrongly() -> dict[str, Any]:
    """Ask for what cannot be: forwards and other contexts inside, contradictory arguments."""
    model, old = prepared(), fsdp1("blocks")
    tokens = batch(0, 0)
    expected = model(tokens).detach()
    found: dict[str, Any] = {}

    def nested() -> None:
        with summon_full_params(model), summon_full_params(model.blocks[0]):
            pass

    def forward(module: Any, inputs: torch.Tensor) -> Any:
        with summon_full_params(model):
            return module(inputs)

    found["nested"] = error_of(nested)
    found["forward"] = error_of(lambda: forward(model, tokens))
    found["forward of a unit"] = error_of(lambda: forward(model.blocks[0], torch.zeros(1, 6)))
    found["in a forward"] = error_of(lambda: _in_forward(model, tokens))
    model.blocks[0].reshard()
    for arguments in ({"rank0_only": True}, {"with_grads": True, "offload_to_cpu": True, "writeback": False}):
        for each in (model, old):
            found[f"{type(each).__name__} {list(arguments)}"] = error_of(
                _summon(each, **arguments).__enter__
            )[0]
    fresh = prepared()
    found["usable"] = torch.equal(fresh(tokens).detach(), expected)
    with summon_full_params(fresh):
        found["head"] = tuple(fresh.head(torch.zeros(2, 6)).shape)  # no unit, so it may be called
    return found


def _in_forward(model: Any, tokens: torch.Tensor) -> None:
    def summon(*_: Any) -> None:
        summon_full_params(model).__enter__()

    handle = model.head.register_forward_pre_hook(summon)
    try:
        model(tokens)
    finally:
        handle.remove()


def who_sees(case: str) -> list[bool]:
    """Tell for FSDP1 and for ours whether `rank0_only` shows the parameters on this rank."""
    return [len(dict(_seen_alone(model))) > 0 for model in _both(case)]


def _seen_alone(model: Any) -> Iterator[tuple[str, torch.Size]]:
    shapes = {name: param.shape for name, param in Net().named_parameters() if param.ndim > 1}
    with _summon(model, rank0_only=True, writeback=False):
        for name, param in model.named_parameters():
            # What is one rank's alone FSDP1 shows whole anyway; so does the DTensor of ours.
            local = param.to_local() if isinstance(param, DTensor) else param
            if local.shape == shapes.get(_clean(name)):
                yield name, local.shape
