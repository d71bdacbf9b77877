"""Models built on the meta device, under FSDP1 and under FSDP2; and ranks that do not agree."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.runtime import load_model_state_dict
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from fsdp_migrate.sharding.tying import parameter_names
from tests.models import Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full


if TYPE_CHECKING:
    from collections.abc import Callable


class Layer(nn.Module):
    """A residual layer whose buffer its own ``reset_parameters`` fills."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.empty(6))
        self.register_buffer("scale", torch.empty(2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gain)
        self.scale.fill_(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.linear(x) * self.gain * self.scale[0]
        return out


class Replacing(Layer):
    """Its ``reset_parameters`` puts another tensor in the buffer's place."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gain)
        self.scale = torch.full((2,), 0.25, device=self.scale.device)


class Stack(nn.Module):
    """An embedding, three layers, a head; all of it can be initialised again."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(6, 13, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


def own_init(module: nn.Module) -> None:
    """Initialise as people's ``param_init_fn`` do: memory first, then values."""
    if any(True for _ in module.parameters(recurse=False)) or any(
        True for _ in module.buffers(recurse=False)
    ):
        module.to_empty(device=torch.device("cpu"), recurse=False)
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        with torch.no_grad():
            tensor.uniform_(-0.5, 0.5)


def initialise_both(with_init: bool) -> tuple[Tensors, Tensors, Tensors]:
    """Materialise by FSDP1 and by ours from the same seed; return FSDP1's values, ours and our buffers."""
    warnings.simplefilter("ignore")
    more: dict[str, Any] = {"param_init_fn": own_init} if with_init else {}
    results: list[Tensors] = []
    buffers: Tensors = {}
    for prepared in (False, True):
        with torch.device("meta"):
            model = Stack()
            model.layers[1] = Replacing()
        arguments = {"auto_wrap_policy": ModuleWrapPolicy({Layer}), "device_id": torch.device("cpu"), **more}
        torch.manual_seed(5)
        if prepared:
            prepare_fully_shard(model, arguments)
            results.append({name: full(param) for name, param in model.named_parameters()})
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        else:
            wrapped = FSDP(model, use_orig_params=True, **arguments)
            with FSDP.summon_full_params(wrapped):
                results.append(
                    {
                        name.replace("_fsdp_wrapped_module.", ""): param.detach().clone()
                        for name, param in wrapped.named_parameters()
                    }
                )
    return results[0], results[1], buffers


def rank0_real(tied: bool) -> tuple[Tensors, Tensors, list[tuple[str, ...]], list[float]]:
    """Build a real model on rank 0 only, broadcast it, train; return rank 0's values, ours, ties, losses."""
    torch.manual_seed(1)
    reference = Stack(tied=tied)
    expected = {
        name: tensor.clone() for name, tensor in (*reference.named_parameters(), *reference.named_buffers())
    }
    model = reference
    if dist.get_rank() != 0:
        with torch.device("meta"):
            model = Stack(tied=tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"auto_wrap_policy": {Layer, nn.Embedding}, "device_id": "cpu", "sync_module_states": True}
    prepare_fully_shard(model, arguments, optimizers=optimizer)
    found = {name: full(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    ties = [names for names in parameter_names(model).values() if len(names) > 1]
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, 0))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return expected, found, ties, losses


def meta_on_rank_1(prepared: bool) -> tuple[Tensors, list[float], list[str]]:
    """Wrap what rank 1 alone fills by a function, load a state; return the parts, losses and findings."""

    def fill(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.detach().fill_(0.125)

    torch.manual_seed(1)
    state = Stack().state_dict()
    model: nn.Module = Stack() if dist.get_rank() == 0 else Stack().to("meta")
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Layer}),
        "device_id": torch.device("cpu"),
        "param_init_fn": None if dist.get_rank() == 0 else fill,
        "use_orig_params": True,
    }
    codes: list[str] = []
    if prepared:
        prepare_fully_shard(model, arguments)
        codes = [each.code for each in shard_plan(model).findings if each.code == "FM131"]
        parts = {name: param.to_local().clone() for name, param in _dtensors(model)}
        load_model_state_dict(model, state)
    else:
        model = FSDP(model, **arguments)
        parts = {}
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, dist.get_rank()))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return parts, losses, codes


def filled_in_another_dtype(on_rank_1: torch.dtype, sent: bool) -> tuple[Tensors, Tensors, str]:
    """Have rank 0 in bfloat16, and rank 1 in float32 on the meta device, cast as it is filled.

    So does who loads a checkpoint on rank 0 alone. Returns rank 0's values, what the model has, and what is
    raised.
    """

    def fill(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        module.to(on_rank_1)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.detach().fill_(0.5)

    torch.manual_seed(1)
    given = Stack().to(torch.bfloat16)
    given.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
    expected = {name: each.detach().clone() for name, each in given.named_parameters()}
    model: nn.Module = given
    if dist.get_rank():
        model = Stack().to("meta")
        model.register_buffer("scale", torch.ones(3, device="meta"))
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({Layer}),
        "device_id": torch.device("cpu"),
        "param_init_fn": fill if dist.get_rank() else None,
        "sync_module_states": sent,
    }
    try:
        prepare_fully_shard(model, arguments)
    except FSDPMigrateError as error:
        return expected, {}, str(error)
    loss_of(model, torch.arange(4).view(1, 4)).backward()
    return expected, {name: param.full_tensor() for name, param in _dtensors(model)}, ""


def _dtensors(model: nn.Module) -> list[tuple[str, DTensor]]:
    return [(name, param.data) for name, param in model.named_parameters() if isinstance(param.data, DTensor)]


def keep_what_is_real() -> tuple[float, bool]:
    """Materialise a model one of whose buffers and one of whose parameters are real; return them."""
    with torch.device("meta"):
        model: Any = Stack()
    model.layers[1].scale = torch.full((2,), 0.75)
    model.layers[2].gain = nn.Parameter(torch.full((6,), 3.0))
    prepare_fully_shard(model, {"auto_wrap_policy": {Layer}, "device_id": "cpu"})
    return model.layers[1].scale[0].item(), torch.equal(full(model.layers[2].gain), torch.full((6,), 3.0))


def init_that_does_nothing() -> str:
    """Pass a ``param_init_fn`` that leaves everything on the meta device; return the error."""
    try:
        prepare_fully_shard(Stack().to("meta"), {"param_init_fn": id, "device_id": "cpu"})
    except FSDPMigrateError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Forgetful(Layer):
    """Its ``reset_parameters`` leaves the buffer alone, and sets the parameter through ``.data``."""

    def reset_parameters(self) -> None:
        self.gain.data.normal_()


def forget_a_buffer() -> str:
    """Prepare a meta model with a buffer that nobody sets; return the error."""
    model = Stack()
    model.layers[1] = Forgetful()
    try:
        prepare_fully_shard(model.to("meta"), {"auto_wrap_policy": {Layer}, "device_id": "cpu"})
    except FSDPMigrateError as error:
        sharded = any(isinstance(module, FSDPModule) for module in model.modules())
        return f"{type(error).__name__}: {error} {'touched' if sharded else 'untouched'}"
    return "no error"


DISAGREEMENTS: dict[str, Callable[[int], tuple[Any, dict[str, Any]]]] = {
    "meta here, real there": lambda rank: (Stack().to("meta") if rank == 1 else Stack(), {}),
    "rank 0 meta": lambda rank: (Stack().to("meta") if rank == 0 else Stack(), {"sync_module_states": True}),
    "another shape": lambda rank: (Net(width=6 + 2 * rank), {}),
    "another policy": lambda rank: (Stack(), {"auto_wrap_policy": {(Layer, nn.Embedding)[rank]}}),
    "a typo on one rank": lambda rank: (Stack(), {"shardng_strategy": 1} if rank else {}),
    "a scalar on one rank": lambda rank: (_with_scalar(Stack(), rank), {}),
}


def _with_scalar(model: nn.Module, rank: int) -> nn.Module:
    if rank == 1:
        model.register_parameter("temperature", nn.Parameter(torch.tensor(1.0)))
    return model


def disagree(name: str) -> tuple[str, bool]:
    """Prepare what the ranks do not agree on; return the error, and whether the model is untouched."""
    model, arguments = DISAGREEMENTS[name](dist.get_rank())
    try:
        prepare_fully_shard(model, {"device_id": "cpu", **arguments})
    except FSDPMigrateError as error:
        sharded = any(isinstance(module, FSDPModule) for module in model.modules())
        return f"{type(error).__name__}: {error}", not sharded
    return "no error", False


def train_with_ignored(kind: str, given: Any) -> tuple[Tensors, Tensors, list[str], list[dict[str, Any]]]:
    """Train with an ignored head, by name, beside an unsharded model; all ranks have the same data."""
    results: list[Tensors] = []
    groups: list[dict[str, Any]] = []
    plain: list[str] = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(
            model.parameters(), lr=0.05, foreach=True
        )
        if prepared:
            prepare_fully_shard(
                model, {"device_id": "cpu", "auto_wrap_policy": "Block", **given}, optimizers=optimizer
            )
            groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            plain = sorted(name for name, param in model.named_parameters() if not isinstance(param, DTensor))
        for step in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, batch(step, 0)))
            optimizer.step()
        results.append({name: full(param) for name, param in model.named_parameters()})
    return results[0], results[1], plain, groups


def forward_prefetch(on: bool) -> tuple[list[str], list[list[str]]]:
    """Train two steps; return each unit's name, and the units that it prefetches."""
    model = Net()
    prepare_fully_shard(
        model, {"device_id": "cpu", "auto_wrap_policy": "Block, Head, Embedding", "forward_prefetch": on}
    )
    for step in range(2):
        torch.autograd.backward(loss_of(model, batch(step, dist.get_rank())))
    names: dict[Any, str] = {module: name for name, module in model.named_modules()}
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    told = [
        [
            names[module]
            for state in unit._get_fsdp_state()._states_to_forward_prefetch
            for module in state._modules
        ]
        for unit in units
    ]
    return [names[unit] for unit in units], told


def reshard_to_two(number: int | bool) -> tuple[list[float], int]:
    """Train on four ranks with parameters sharded again over two; return losses, and rows after forward."""
    torch.manual_seed(0)
    model: Any = Net()
    prepare_fully_shard(
        model, {"device_id": "cpu", "auto_wrap_policy": "Block"}, reshard_after_forward=number
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    rows = 0
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, dist.get_rank()))
        weight = model.blocks[0].up.weight
        rows = weight.to_local().shape[0] if isinstance(weight, DTensor) else weight.shape[0]
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, rows
