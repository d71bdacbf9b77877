"""Models and optimizers in host memory for a while; a CPU is taken for a device here."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate.runtime import (
    full_state_dict,
    named_full_tensors,
    offloaded,
    offloading,
)
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat import param_groups
from fsdp_migrate.torch_compat.tensor_kinds import dense_parts
from tests.models import Block, Net
from tests.rank_bodies.runtime import BLOCKS, backward, error_of, whole_of


if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Move what is on the CPU, as if that were a device whose memory is to be free."""
    with mock.patch.object(offloading, "leaves_the_device", lambda tensor: not tensor.is_meta):
        yield


def _trained() -> tuple[Any, torch.optim.Optimizer]:
    """Return a model with gradients, a tie, a frozen unit and an empty shard; and its optimizer."""
    torch.manual_seed(0)
    net = Net(tied=True)
    net.register_parameter("single", nn.Parameter(torch.ones(1)))
    net.blocks[0].requires_grad_(False)
    model = prepare_fully_shard(net, BLOCKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False, capturable=False)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step)
        if step == 0:
            optimizer.step()
    return model, optimizer


def _goes_on(model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Step with the gradients that are there, and train on; return losses and all values."""
    losses = []
    for step in range(2, 5):
        optimizer.step()
        optimizer.zero_grad()
        losses.append(backward(model, step))
    return losses, {
        **whole_of(model),
        **{f"{k}'s gradient": v for k, v in whole_of(model, grads=True).items()},
    }


def _objects(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what must be the same before and after: objects, where they lie, how they are cut."""
    found: dict[str, Any] = {}
    tensors: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors |= {f"{k}.grad": p.grad for k, p in model.named_parameters() if p.grad is not None}
    for number, state in enumerate(optimizer.state.values()):
        tensors |= {f"{number}.{key}": value for key, value in state.items()}
    for group in param_groups.parameter_groups(model):
        tensors |= {f"{group.name}'s {number}. flat": flat for number, flat in enumerate(group.flat_shards)}
    for name, tensor in tensors.items():
        found[name] = (
            id(tensor),
            tensor.requires_grad,
            str(tensor.placements) if isinstance(tensor, DTensor) else "",
            [
                (
                    id(part),
                    part.untyped_storage()._cdata,
                    part.storage_offset(),
                    tuple(part.size()),
                    part.stride(),
                )
                for part in dense_parts(tensor)
            ],
        )
    groups = [[id(param) for param in group["params"]] for group in optimizer.param_groups]
    return {**found, "groups": groups, "keys": [id(param) for param in optimizer.state]}


def round_trip() -> dict[str, Any]:
    """Offload between two steps; compare everything with a run that never did."""
    expected = _goes_on(*_trained())
    model, optimizer = _trained()
    before, values = _objects(model, optimizer), full_state_dict(model, optimizer, rank0_only=False)
    own_view = model.head.out.bias.to_local()
    kept = own_view.clone()
    tensors = offloading._tensors(model, [optimizer])
    storages = [part.untyped_storage() for tensor in tensors for part in dense_parts(tensor)]
    found: dict[str, Any] = {"bytes before": sum(storage.nbytes() for storage in storages)}
    with as_on_a_device(), offloaded(model, optimizer):
        found["bytes inside"] = sum(storage.nbytes() for storage in storages)
        inside = full_state_dict(model, optimizer, rank0_only=False)
        found["inside"] = _same(values, inside)
        found["given inside"] = _same(dict(named_full_tensors(model)), values["model"])
        found["moved"] = sum(
            part.untyped_storage()._cdata != place[1]
            for name, param in model.named_parameters()
            for part, place in zip(dense_parts(param), before[name][3], strict=True)
        )
        found["params"] = len(list(model.parameters()))
        found["forward"] = error_of(lambda: backward(model, 9))
        found["forward of a unit"] = error_of(lambda: model.blocks[0](torch.ones(1, 6)))
        found["step"] = error_of(optimizer.step)
        with offloaded(model, optimizer):
            found["nested"] = _same(values, full_state_dict(model, optimizer, rank0_only=False))
        found["after nested"] = sum(storage.nbytes() for storage in storages)
    found["objects"] = _objects(model, optimizer) == before
    found["own view"] = torch.equal(own_view, kept)
    with suppress(KeyError), as_on_a_device(), offloaded(model, optimizer):
        raise KeyError("in the context")
    found["objects after an error"] = _objects(model, optimizer) == before
    losses, trained = _goes_on(model, optimizer)
    found["losses"] = losses == expected[0]
    found["trained"] = _same(trained, expected[1])
    return found


def _same(one: Any, other: Any) -> bool:
    """Compare nested states bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def changed_inside() -> dict[str, Any]:
    """Write into the model in the context; fail at its beginning and at its end."""
    model, optimizer = _trained()
    other = full_state_dict(model, optimizer, rank0_only=False)
    for value in {id(value): value for value in other["model"].values()}.values():
        value.add_(1)
    with as_on_a_device(), offloaded(model, optimizer), torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            for part in dense_parts(tensor):
                part.add_(1)
    found: dict[str, Any] = {
        "written": _same(full_state_dict(model, optimizer, rank0_only=False)["model"], other["model"])
    }
    before = _objects(model, optimizer)
    original, calls = offloading._Memory.to_host, []

    def too_much(self: Any, **options: Any) -> None:
        calls.append(self)
        if len(calls) == 5:
            raise MemoryError("the host is full")
        original(self, **options)

    full = mock.patch.object(offloading._Memory, "to_host", too_much)
    with suppress(MemoryError), as_on_a_device(), full, offloaded(model, optimizer):
        found["entered"] = True
    found["objects after a full host"] = _objects(model, optimizer) == before
    found["forward after a full host"] = error_of(lambda: backward(model, 9))[0]
    now = full_state_dict(model, rank0_only=False)["model"]

    def no_room(self: Any) -> None:
        del self
        raise RuntimeError("CUDA out of memory")

    def leave() -> None:
        with as_on_a_device(), ExitStack() as stack:
            stack.enter_context(mock.patch.object(offloading._Memory, "to_device", no_room))
            stack.enter_context(offloaded(model, optimizer))

    found["full device"] = error_of(leave)
    found["saved from the host"] = _same(full_state_dict(model, rank0_only=False)["model"], now)
    found["forward from the host"] = error_of(lambda: backward(model, 9))
    return found


def on_a_cpu() -> dict[str, Any]:
    """Offload what is in host memory already: a model on a CPU, one with CPU offload, a plain one."""
    models: dict[str, Any] = {
        "CPU": prepare_fully_shard(Net(), BLOCKS),
        "CPU offload": prepare_fully_shard(Net(), {**BLOCKS, "cpu_offload": True}),
        "plain": nn.Sequential(Block(6, 17)),
    }
    found: dict[str, Any] = {}
    for name, model in models.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = _objects(model, optimizer)
        with offloaded(model, optimizer):
            found[name] = _objects(model, optimizer) == before
    stranger = torch.optim.SGD(Net().parameters(), lr=0.1)
    found["stranger"] = error_of(lambda: offloaded(models["CPU"], stranger).__enter__())
    found["in a forward"] = _in_a_forward(models["CPU"])
    return found


def _in_a_forward(model: Any) -> tuple[str, str]:
    found: list[tuple[str, str]] = []
    hook = model.head.register_forward_pre_hook(
        lambda *_: found.append(error_of(lambda: offloaded(model).__enter__()))
    )
    model(torch.zeros(1, 2, dtype=torch.long))
    hook.remove()
    dist.barrier()
    return found[0]
