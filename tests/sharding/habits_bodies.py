"""Models whose units do things to what they are given, or run in unlike ways, under FSDP1 and prepared."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat.collectives import watch_collectives
from fsdp_migrate.torch_compat.param_groups import parameter_groups
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Callable


WIDTH = 6


class Layer(nn.Module):
    """A residual perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 11)
        self.down = nn.Linear(11, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return out


class Noting(Layer):
    """Puts a loss of its own into a list or a dict that it is given."""

    def forward(self, x: torch.Tensor, notes: Any = None) -> torch.Tensor:
        out = super().forward(x)
        note = out.float().square().mean()
        if isinstance(notes, list):
            notes.append(note)
        else:
            notes[len(notes)] = note
        return out


class Attending(Layer):
    """Uses its second input twice, as cross-attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        assert other is not None
        weights = (x @ self.key(other).transpose(-1, -2)).softmax(-1)
        return super().forward(x + weights @ self.value(other))


class Adding(Layer):
    """Works in place on its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 0.5
        return super().forward(x)


class Asking(Layer):
    """Asks whether its two inputs are one tensor."""

    def forward(self, x: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if x is first or first is None else x + first)


class Checkpointing(Layer):
    """Recomputes its middle with reentrant checkpointing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(checkpoint(self.middle, self.norm(x), use_reentrant=True))
        return out

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.up(x))
        return out


@dataclass
class Pack:
    """What torch's pytrees do not look into."""

    x: torch.Tensor


class Packing(Layer):
    """Returns an object of its own."""

    def forward(self, x: torch.Tensor) -> Any:
        return Pack(super().forward(x))


class Adapted(Layer):
    """Trains an adapter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.adapter(x))


class Routing(Layer):
    """Has a gate that it casts itself, as routers of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.gate = self.gate.to(torch.float32)
        weights = self.gate(x.float()).softmax(-1)
        out: torch.Tensor = super().forward(x) * weights[..., :1].to(x.dtype)
        return out


class Net(nn.Module):
    """An input layer, three units, and an output layer, run as ``way`` says."""

    def __init__(self, kind: type[Layer], way: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(kind() for _ in range(3))
        self.last = nn.Linear(WIDTH, 3)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.way(self, self.first(x))
        return out


def _end(net: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(net.last(x).float().square().mean())


def _in_turn(net: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        x = layer(x * 1.0)
    return _end(net, x)


def _unpacking(net: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        x = layer(x).x
    return _end(net, x)


def _noting(make: type[list[Any] | dict[Any, Any]]) -> Callable[..., torch.Tensor]:
    def way(net: Any, x: torch.Tensor) -> torch.Tensor:
        notes: Any = make()
        for layer in net.layers:
            x = layer(x, notes)
        return _end(net, x) + sum(notes.values() if isinstance(notes, dict) else notes, torch.zeros(()))

    return way


def _to_one_input(net: Any, x: torch.Tensor) -> torch.Tensor:
    first = x
    for layer in net.layers:
        x = layer(x, first)
    return _end(net, x)


def _again(net: Any, x: torch.Tensor) -> torch.Tensor:
    for index in (0, 1, 2, 1, 0, 0):
        x = net.layers[index](x)
    return _end(net, x)


def _by_rank(net: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        for _ in range(1 + dist.get_rank()):
            x = layer(x)
    return _end(net, x)


class Inner(nn.Linear):
    """A linear layer that is a unit of its own."""


class InParts(Layer):
    """A perceptron of two units: each runs again before the other one is over."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Inner(WIDTH, 11), Inner(11, WIDTH)


class Flattening(nn.GRU):
    """Moves its weights on a CPU as torch does on CUDA, when it finds that it was given other ones."""

    def flatten_parameters(self) -> None:
        weights: list[Any] = self._flat_weights
        if any(isinstance(each, DTensor) for each in weights):
            return
        parts = torch.cat([each.detach().flatten() for each in weights]).split(
            [each.numel() for each in weights]
        )
        for each, part in zip(weights, parts, strict=True):
            each.data = part.view(each.shape)


class Recurrent(Layer):
    """A perceptron with a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = Flattening(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.recurrent(x)[0])


def _recomputed(net: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        x = checkpoint(layer, x, use_reentrant=True)  # type: ignore[assignment,unused-ignore]
    return _end(net, x)


@dataclass(frozen=True)
class Habit:
    """How a model is built, run and trained; where FSDP1 fails, ``reference`` is what it does."""

    kind: type[Layer]
    way: Callable[..., torch.Tensor] = _in_turn
    train: str = "plain"
    strategy: str = "FULL_SHARD"
    rate: float = 0.1
    reference: str | None = None


HABITS = {
    "a list is appended to": Habit(Noting, _noting(list)),
    "a dict is written into": Habit(Noting, _noting(dict)),
    "one input of several units": Habit(Attending, _to_one_input),
    "in-place work on an input": Habit(Adding),
    "one tensor given twice": Habit(Asking, _to_one_input),
    "units run again": Habit(Layer, _again),
    "units run again, gathered once": Habit(Layer, _again, strategy="SHARD_GRAD_OP"),
    "as often as the rank says": Habit(Layer, _by_rank, strategy="SHARD_GRAD_OP"),
    "units within, as often as the rank says": Habit(InParts, _by_rank, strategy="SHARD_GRAD_OP"),
    "recurrent layers": Habit(Recurrent),
    "one after the other": Habit(Layer),
    "at twice the rate": Habit(Layer, rate=0.2),
    "accumulated": Habit(Layer, train="accumulated"),
    # FSDP1 frees what is recomputed, and what a second backward needs; after an evaluation with gradients
    # it does not reduce those of mixed precision.
    "a part is recomputed": Habit(Checkpointing, reference="one after the other"),
    # FSDP1 leaves gradients unreduced there.
    "a part is recomputed, NO_SHARD": Habit(
        Checkpointing, strategy="NO_SHARD", reference="one after the other"
    ),
    "two forwards, two backwards": Habit(Layer, train="two in turn", reference="accumulated"),
    "two backwards of one graph": Habit(Layer, train="twice", reference="at twice the rate"),
    "evaluated with gradients": Habit(Layer, train="after evaluation", reference="one after the other"),
    "after a backward that broke off": Habit(
        Layer, train="after a broken one", reference="one after the other"
    ),
    "units are recomputed": Habit(Layer, _recomputed),
    "evaluated first, in inference mode": Habit(
        Layer, train="after inference", reference="one after the other"
    ),
    "dataclasses are returned": Habit(Packing, _unpacking),
    "a unit is thawed": Habit(Layer, train="thawed"),
    "most is frozen": Habit(Adapted),
    "a part is cast": Habit(Routing),
    # FSDP1 fails where it would compute again with what was cast.
    "a part is cast, gathered once": Habit(Routing, strategy="SHARD_GRAD_OP", reference="a part is cast"),
    "a part is cast, accumulated": Habit(Routing, train="accumulated"),
    "a part is cast first in inference mode": Habit(
        Routing, train="after inference", reference="a part is cast"
    ),
    "two forwards, one backward": Habit(Layer, train="two at once"),
    "two forwards, each recomputed": Habit(Layer, _recomputed, train="two at once"),
}


def _backward(loss: torch.Tensor) -> float:
    torch.autograd.backward(loss)
    return loss.item()


class _BrokenOffError(Exception):
    """What a hook raises in the middle of a backward."""


def _break_off(model: Any, batch: torch.Tensor) -> None:
    """Begin a backward that fails in the middle unit."""

    def fail(*args: Any) -> None:
        raise _BrokenOffError

    handle = model.layers[1].register_full_backward_pre_hook(fail)
    loss = model(batch)
    handle.remove()
    with contextlib.suppress(_BrokenOffError):
        torch.autograd.backward(loss)
    model.zero_grad()


def losses_of(model: nn.Module, train: str, step: int) -> list[float]:
    """Run one step's forwards and backwards."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    batches = [torch.randn(4, 2, WIDTH, generator=generator) for _ in range(2)]
    if train == "accumulated":
        return [_backward(model(each)) for each in batches]
    if train == "after evaluation":
        model.eval()
        kept = model(batches[1])  # its graph is there, and no backward comes
        model.train()
        found = [_backward(model(batches[0]))]
        assert kept.grad_fn is not None
        return found
    if train == "after a broken one":
        _break_off(model, batches[1])
        return [_backward(model(batches[0]))]
    if train == "after inference":
        model.eval()
        with torch.inference_mode():
            model(batches[1])
        model.train()
        return [_backward(model(batches[0]))]
    losses = [model(each) for each in batches[: 1 if train in {"plain", "twice", "thawed"} else 2]]
    if train == "two at once":
        torch.autograd.backward(sum(losses[1:], losses[0]))
    elif train == "twice":
        torch.autograd.backward(losses[0], retain_graph=True)
        torch.autograd.backward(losses[0])
    else:
        for loss in reversed(losses):
            torch.autograd.backward(loss)
    return [loss.item() for loss in losses]


def train(name: str, precision: str, *, prepared: bool) -> list[Any]:
    """Train for three steps; return the losses, and the parameters at the end."""
    habit = HABITS[name]
    arguments: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({habit.kind, Inner}),
        "sharding_strategy": ShardingStrategy[habit.strategy],
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    if precision == "bf16":
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    torch.manual_seed(0)
    model: Any = Net(habit.kind, habit.way)
    first = model.layers[0]
    if habit.train == "thawed":
        first.requires_grad_(requires_grad=False)
    model = prepare_fully_shard(model, arguments) if prepared else FSDP(model, **arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=habit.rate, momentum=0.9)
    found: list[Any] = []
    for step in range(3):
        if habit.train == "thawed":
            first.requires_grad_(step > 0)
        found.append(losses_of(model, habit.train, step))
        optimizer.step()
        optimizer.zero_grad()
    if prepared:
        return [*found, [full(param) for param in model.parameters()]]
    with FSDP.summon_full_params(model):
        return [*found, [param.detach().clone() for param in model.parameters()]]


def compare(precision: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Train in every way under FSDP1 and prepared."""
    warnings.simplefilter("ignore")
    return {
        name: (
            train(habit.reference or name, precision, prepared=False),
            train(name, precision, prepared=True),
        )
        for name, habit in HABITS.items()
    }


class Borrowing(nn.Module):
    """Uses parameters of units that it does not call: attention's `out_proj`, and a layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        out: torch.Tensor = self.out(torch.tanh(x @ self.layer.weight))
        return out


def borrowed(*, prepared: bool) -> list[Any]:
    """Train where units are not called, under NO_SHARD or whole; return the losses, and the parameters."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model: Any = nn.Sequential(Borrowing(), Borrowing())
    if prepared:
        arguments = {"auto_wrap_policy": {nn.Linear}, "sharding_strategy": "NO_SHARD", "device_id": "cpu"}
        prepare_fully_shard(model, arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[Any] = []
    for step in range(4):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        batch = torch.randn(4, 3, WIDTH, generator=generator)
        if step in {0, 2}:
            with torch.no_grad():
                found.append(model.eval()(batch).sum().item())
        loss = model.train()(batch).square().mean()
        torch.autograd.backward(loss)
        found.append(loss.item())
        for param in () if prepared else model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return [*found, [full(param) if prepared else param.detach() for param in model.parameters()]]


class _Log:
    """Notes the collectives of a model's units."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(p): group.name for group in parameter_groups(model) for p in group.parameters}
        self.seen: list[tuple[str, str]] = []

    def before_allocating(self, kind: Any, parameters: Any) -> bool:
        self.seen.append((kind, self.names[id(parameters[0])]))
        return False

    def before_sending(self) -> None:
        raise AssertionError("not watched")


def order_of_collectives(name: str) -> list[tuple[str, str]]:
    """Return the collectives of the second step, in their order."""
    habit = HABITS[name]
    torch.manual_seed(0)
    arguments = {"auto_wrap_policy": {habit.kind}, "device_id": torch.device("cpu")}
    model = prepare_fully_shard(Net(habit.kind, habit.way), arguments)
    losses_of(model, habit.train, 0)
    log = _Log(model)
    with watch_collectives(log):
        losses_of(model, habit.train, 1)
    return log.seen
