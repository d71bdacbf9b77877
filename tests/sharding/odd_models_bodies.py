"""Models that are strange: those that nothing can shard, and those that FSDP1 trained all the same."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate.errors import FSDPMigrateError, UnsupportedFeatureError
from fsdp_migrate.sharding.prepare import prepare_fully_shard


if TYPE_CHECKING:
    from collections.abc import Callable


class Chain(nn.Module):
    """A model that calls its children one after the other."""

    def __init__(self, *children: Any) -> None:
        super().__init__()
        for number, child in enumerate(children):
            self._modules[str(number)] = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self._modules.values():
            x = x if child is None else child(x)
        return x


class First(Chain):
    """A model that calls its first child only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: Any = self._modules["0"]
        out: torch.Tensor = first(x)
        return out


class Layer(nn.Module):
    """A layer that uses each of its own parameters, whatever their names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for parameter in self._parameters.values():
            x = x if parameter is None else x * parameter.mean()
        return x


class Unborn(nn.Module):
    """A module that forgot ``super().__init__()``."""

    def __init__(self) -> None:
        self.size = 4


class Unhashable(nn.Linear):
    """A layer that compares as its author likes."""

    __hash__ = None  # type: ignore[assignment]


class AllEqual(nn.Linear):
    """A layer that is equal to all others of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllEqual)

    def __hash__(self) -> int:
        return 1


class Frozen(nn.Linear):
    """A layer that lets nobody set its attributes, once it is made."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "bias" in vars(self).get("_parameters", ()):
            raise AttributeError("frozen")
        super().__setattr__(name, value)


def with_part(table: str, name: Any, value: Any) -> nn.Module:
    """Put something into a table of a layer, past all checks of torch."""
    layer = Layer()
    vars(layer)[table][name] = value
    return Chain(layer)


def with_parameter(name: Any, value: Any = None) -> nn.Module:
    """Put a parameter into a layer under any name."""
    return with_part("_parameters", name, nn.Parameter(torch.ones(4)) if value is None else value)


def with_table(**tables: Any) -> nn.Module:
    """Replace tables of a layer."""
    layer = nn.Linear(4, 4)
    vars(layer).update(tables)
    return Chain(layer)


def in_a_circle() -> nn.Module:
    """Make a model that a module in it has for a child."""
    model = Chain(nn.Linear(4, 4), Chain(nn.Linear(4, 4)))
    vars(model._modules["1"])["_modules"]["parent"] = model
    return model


def in_itself() -> nn.Module:
    """Make a module below another that is its own child."""
    model = Chain(Chain(nn.Linear(4, 4)))
    child: Any = model._modules["0"]
    vars(child)["_modules"]["own"] = child
    return model


def nested(levels: int) -> nn.Module:
    """Make a model with modules nested so deeply; its forward does not go there."""
    inner: nn.Module = nn.Linear(4, 4)
    for _ in range(levels - 2):
        outer = nn.Module()
        outer.add_module("inner", inner)
        inner = outer
    return First(nn.Linear(4, 4), inner)


def without_memory() -> nn.Module:
    """Make a model of which something has freed a parameter."""
    layer = nn.Linear(4, 4)
    layer.weight.untyped_storage().resize_(0)
    return Chain(layer)


def _parameter(value: Any) -> nn.Parameter:
    return nn.Parameter(value)


REFUSED: dict[str, Callable[[], Any]] = {
    "a parameter with a dot": lambda: with_parameter("a.b"),
    "a parameter without a name": lambda: with_parameter(""),
    "a parameter named by a number": lambda: with_parameter(3),
    "a parameter named by None": lambda: with_parameter(None),
    "a parameter named forward": lambda: with_parameter("forward"),
    "a buffer named by a number": lambda: with_part("_buffers", 3, torch.ones(4)),
    "a module with a dot": lambda: with_part("_modules", "a.b", nn.Linear(4, 4)),
    "a module without a name": lambda: with_part("_modules", "", nn.Linear(4, 4)),
    "a module named by a number": lambda: with_part("_modules", 3, nn.Linear(4, 4)),
    "a tensor for a module": lambda: with_part("_modules", "no", torch.ones(3)),
    "a function for a module": lambda: with_part("_modules", "no", torch.relu),
    "a class for a module": lambda: with_part("_modules", "no", nn.ReLU),
    "a tensor for a parameter": lambda: with_parameter("no", torch.ones(4)),
    "a number for a parameter": lambda: with_parameter("no", 3.5),
    "a list for a buffer": lambda: with_part("_buffers", "no", [1]),
    "a circle": in_a_circle,
    "a module in itself": in_itself,
    "nested too deeply": lambda: nested(2000),
    "a lazy layer": lambda: Chain(nn.Linear(4, 4), nn.LazyLinear(4)),
    "a lazy buffer": lambda: Chain(nn.Linear(4, 4), nn.LazyBatchNorm1d(affine=False)),
    "a sparse parameter": lambda: with_parameter("odd", _parameter(torch.eye(4).to_sparse())),
    "a compressed parameter": lambda: with_parameter("odd", _parameter(torch.eye(4).to_sparse_csr())),
    "a nested tensor": lambda: with_parameter("odd", _parameter(torch.nested.nested_tensor([torch.ones(2)]))),
    "a parameter without memory": without_memory,
    "a scripted model": lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4))),
    "a scripted child": lambda: Chain(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4))),
    "no init": Unborn,
    "no init of a child": lambda: nn.Sequential(nn.Linear(4, 4), Unborn()),
    "no table of parameters": lambda: with_table(_parameters=None),
    "a list of modules": lambda: with_table(_modules=[]),
    "a class": lambda: Chain,
    "a list": lambda: [nn.Linear(4, 4)],
    "wrapped by DDP": lambda: DistributedDataParallel(Chain(nn.Linear(4, 4))),
    "wrapped by FSDP1": lambda: FSDP(Chain(nn.Linear(4, 4)), device_id=torch.device("cpu")),
    "unhashable": lambda: Chain(nn.Linear(4, 4), Unhashable(4, 4)),
    "frozen": lambda: Frozen(4, 4),
}


def _parts(model: Any) -> list[int]:
    """Tell a model's parts apart, without a call of anything of its own."""
    found, seen, todo = [], set(), [model]
    while todo:
        module = todo.pop()
        if id(module) in seen or not hasattr(module, "__dict__"):
            continue
        seen.add(id(module))
        found += [id(module), id(type(module))]
        tables = [vars(module).get(table) for table in ("_parameters", "_buffers", "_modules")]
        for table in tables:
            entries = list(table.values()) if isinstance(table, dict) else []
            found += map(id, entries)
            todo += entries if table is tables[-1] else []
    return found


def refuse_all() -> dict[str, tuple[str, str, bool]]:
    """Prepare each model; return the class of the error, what it says, and whether the model is as it was."""
    warnings.simplefilter("ignore")
    found = {}
    for name, make in REFUSED.items():
        model = make()
        before = _parts(model)
        error: Any = None
        try:
            prepare_fully_shard(model, {"device_id": "cpu"})
        except FSDPMigrateError as raised:
            error = raised
        found[name] = (type(error).__name__, str(error), _parts(model) == before)
    return found


TAKEN: dict[str, Callable[[], Any]] = {
    "a module that is None": lambda: Chain(nn.Linear(4, 4), None, nn.Linear(4, 4)),
    "a parameter that is None": lambda: with_part("_parameters", "none", None),
    "a parameter of a strange name": lambda: with_parameter("a\0\ud800\nb `c`"),
    "a name of FSDP1's own": lambda: with_parameter("_fsdp_wrapped_module"),
    "a buffer with a dot": lambda: with_part("_buffers", "a.b", torch.ones(4)),
    "a parameter that is a buffer too": lambda: with_part("_buffers", "weight", nn.Parameter(torch.ones(4))),
    "nested deeply": lambda: nested(900),
    "all equal": lambda: Chain(AllEqual(4, 4), AllEqual(4, 4)),
    "lazy, and ignored": lambda: Chain(nn.Linear(4, 4), nn.LazyLinear(4)),
    "scripted, and ignored": lambda: Chain(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4))),
}


def train_all() -> dict[str, list[Any]]:
    """Train each model under FSDP1 and prepared; return both's losses, or what this torch refuses."""
    warnings.simplefilter("ignore")
    found: dict[str, list[Any]] = {}
    for name, make in TAKEN.items():
        for prepared in (False, True):
            torch.manual_seed(0)
            model = make()
            arguments: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
            if "ignored" in name:
                arguments["ignored_modules"] = [model._modules["1"]]
            try:
                model = prepare_fully_shard(model, arguments) if prepared else FSDP(model, **arguments)
            except UnsupportedFeatureError as refusal:
                found[name].append(str(refusal))
                continue
            found.setdefault(name, []).append(_train(model))
    return found


def _train(model: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def both() -> tuple[dict[str, tuple[str, str, bool]], dict[str, list[Any]]]:
    """Do both in one run of ranks."""
    return refuse_all(), train_all()
