"""Weights that are written around forwards without a backward: of one process, FSDP1 and FSDP2."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.sharding.after_evaluation_bodies import WIDTH, Block, Net


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Wrap = tuple[str, bool]
"""A strategy, also ``STRATEGY without a policy`` or ``of encoders``, and ``use_orig_params``."""
_UNITS: dict[str, type[nn.Module]] = {"": Block, "of encoders": Net}
Losses = list[float] | str


def _arguments(wrap: Wrap) -> dict[str, Any]:
    (strategy, _, units), is_orig = wrap[0].partition(" "), wrap[1]
    found: dict[str, Any] = {
        "auto_wrap_policy": None if units.startswith("without") else ModuleWrapPolicy({_UNITS[units]}),
        "sharding_strategy": ShardingStrategy[strategy],
        "use_orig_params": is_orig,
        "device_id": torch.device("cpu"),
    }
    if "HYBRID" in strategy:
        found["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return found


def _batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        every = torch.randn(4 * 3, WIDTH, generator=generator)
        yield every, every.chunk(dist.get_world_size())[dist.get_rank()]


def _under_each(train: Callable[..., list[float]], wrap: Wrap) -> dict[str, Losses]:
    """Run a training of one process, under FSDP1 and under FSDP2; of one that raises return what it says."""
    warnings.simplefilter("ignore")
    kinds: dict[str, Callable[[nn.Module], Any]] = {
        "one process": lambda net: net,
        "FSDP1": lambda net: FSDP(net, **_arguments(wrap)),
        "FSDP2": lambda net: prepare_fully_shard(net, _arguments(wrap)),
    }
    found: dict[str, Losses] = {}
    for name, make in kinds.items():
        torch.manual_seed(0)
        try:
            found[name] = train(make, is_sharded=name != "one process")
        except RuntimeError as error:
            found[name] = str(error)
    return found


def _mean(loss: torch.Tensor, *, is_sharded: bool) -> float:
    mean = loss.detach().clone()
    if is_sharded:
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    return mean.item()


def _average(teacher: nn.Module, student: nn.Module) -> None:
    with torch.no_grad():
        for theirs, ours in zip(teacher.parameters(), student.parameters(), strict=True):
            theirs.data.mul_(0.5).add_(ours.data, alpha=0.5)


def taught(wrap: Wrap) -> dict[str, Losses]:
    """Train beside a teacher that runs without gradients alone; also with one that is averaged in part."""

    def train(make: Callable[[nn.Module], Any], *, is_sharded: bool, part: str = "") -> list[float]:
        net = Net()
        teacher, student = make(copy.deepcopy(net)), make(copy.deepcopy(net))
        optimizer, losses = torch.optim.SGD(student.parameters(), lr=0.5), []
        for every, own in _batches():
            x = own if is_sharded else every
            with torch.no_grad():
                wanted = teacher(x + 1)
            loss = (student(x) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if part != "nothing":
                _average(*((teacher.blocks, student.blocks) if part else (teacher, student)))
            losses.append(_mean(loss, is_sharded=is_sharded))
        return losses

    found = _under_each(train, wrap)
    for part in ("units", "nothing"):
        torch.manual_seed(0)
        found[part] = train(lambda net: net, is_sharded=False, part=part)
    return found


def limited(wrap: Wrap, place: str) -> dict[str, Losses]:
    """Train with a limit on the weights, or an evaluation, at one place of each step."""

    def train(make: Callable[[nn.Module], Any], *, is_sharded: bool) -> list[float]:
        model = make(Net())
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
        for every, own in _batches():
            x = own if is_sharded else every
            loss = model(x).square().mean()
            if place == "before the backward":
                _limit(model)
            loss.backward()
            if place == "evaluated before the step":
                _evaluate(model, x)
            optimizer.step()
            optimizer.zero_grad()
            if place == "after an evaluation":
                _evaluate(model, x)
            if place in {"after an evaluation", "after the step"}:
                _limit(model)
            losses.append(_mean(loss, is_sharded=is_sharded))
        return losses

    return _under_each(train, wrap)


@torch.no_grad()
def _limit(model: nn.Module) -> None:
    for param in model.parameters():
        param.data.clamp_(-0.2, 0.2)


@torch.no_grad()
def _evaluate(model: nn.Module, x: torch.Tensor) -> None:
    model(x)


def contrasted(wrap: Wrap, *, is_above: bool) -> dict[str, Losses]:
    """Train two encoders, of which the first's average is the second, above or below the first's forward."""

    def train(make: Callable[[nn.Module], Any], *, is_sharded: bool) -> list[float]:
        net = Net()
        query, key = make(copy.deepcopy(net)), make(copy.deepcopy(net))
        optimizer, losses = torch.optim.SGD(query.parameters(), lr=0.5), []
        for every, own in _batches():
            x = own if is_sharded else every
            if is_above:
                _average(key, query)
            first = query(x)
            if not is_above:
                _average(key, query)
            with torch.no_grad():
                second = key(x + 1)
            loss = (first - second).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(_mean(loss, is_sharded=is_sharded))
        return losses

    return _under_each(train, wrap)


class Contrast(nn.Module):
    """Both encoders in one module, as MoCo has them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.query, self.key, self.way = Net(), Net(), way
        self.key.load_state_dict(self.query.state_dict())

    @torch.no_grad()
    def update(self) -> None:
        """Average the key's weights, in place or not."""
        for ours, theirs in zip(self.query.parameters(), self.key.parameters(), strict=True):
            if self.way == "put":
                theirs.data = theirs.data * 0.5 + ours.data * 0.5
            else:
                theirs.data.mul_(0.5).add_(ours.data, alpha=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        first = self.query(x)
        with torch.no_grad():
            if self.way not in {"above", "never"}:
                self.update()
            second = self.key(x + 1)
        loss: torch.Tensor = (first - second).square().mean()
        return loss


def in_a_forward(wrap: Wrap, way: str) -> dict[str, Losses]:
    """Train such a module, whose average is written in its forward, or above it."""

    def train(make: Callable[[nn.Module], Any], *, is_sharded: bool) -> list[float]:
        model = make(Contrast(way))
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
        for every, own in _batches():
            if way == "above":
                _update(model)
            loss = model(own if is_sharded else every)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(_mean(loss, is_sharded=is_sharded))
        return losses

    return _under_each(train, wrap)


def saved_in_a_forward(wrap: Wrap, way: str) -> dict[str, bool]:
    """Tell of one process, FSDP1 and FSDP2 whether the averaged weights are saved as they were first."""
    saved: dict[str, bool] = {}

    def train(make: Callable[[nn.Module], Any], *, is_sharded: bool) -> list[float]:
        net = Contrast(way)
        first = {name: each.detach().clone() for name, each in net.key.state_dict().items()}
        model = make(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for every, own in _batches():
            if way == "above":
                _update(model)
            model(own if is_sharded else every).backward()
            optimizer.step()
            optimizer.zero_grad()
        state: dict[str, Any] = dict(
            get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        )
        are_first = [torch.equal(each, state[f"key.{name}"]) for name, each in first.items()]
        return [float(any(are_first)), float(all(are_first))]

    for name, each in _under_each(train, wrap).items():
        saved[name] = each == [1.0, 1.0]
    return saved


def _update(model: Any) -> None:
    net: Any = model.module if isinstance(model, FSDP) else model
    net.update()


def kept(wrap: Wrap) -> dict[str, set[str]]:
    """Return, by who is asked, which weights that were written after an evaluation are the first ones."""
    warnings.simplefilter("ignore")

    def make() -> Any:
        torch.manual_seed(0)
        model = FSDP(Net(), **_arguments(wrap))
        _evaluate(model, torch.ones(2, WIDTH))
        with torch.no_grad():
            for param in model.parameters():
                param.data.fill_(0.5)
        return model

    def old(named: Any) -> set[str]:
        return {name for name, each in named if not torch.all(each.detach() == 0.5)}

    found, model = {}, make()
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    found["full state"] = old(state.items())
    with FSDP.summon_full_params(model, writeback=False):
        found["summoned"] = old(model.module.named_parameters())
    found["shards"] = {str(i) for i, each in enumerate(_flat(model)) if not torch.all(each == 0.5)}
    with FSDP.summon_full_params(model, writeback=True):
        pass
    found["shards, summoned with writeback"] = {
        str(i) for i, each in enumerate(_flat(model)) if not torch.all(each == 0.5)
    }
    return found


def asked_by_a_method(wrap: Wrap) -> dict[str, list[float]]:
    """Return what a method of units alone gives before and after its weights are written, three times."""
    warnings.simplefilter("ignore")
    x, found = torch.ones(2, WIDTH), {}
    kinds: dict[str, Callable[[nn.Module], Any]] = {
        "one process": lambda net: net,
        "FSDP1": lambda net: FSDP(net, **_arguments(wrap)),
        "FSDP2": lambda net: prepare_fully_shard(net, _arguments(wrap)),
    }
    for name, make in kinds.items():
        torch.manual_seed(0)
        model, given = make(Net()), []
        for _ in range(3):
            with torch.no_grad():
                given.append(model.blocks(x).sum().item())
                for param in model.parameters():
                    param.data.mul_(0.5)
        found[name] = given
    return found


def loaded(wrap: Wrap) -> bool:
    """Tell whether FSDP1 computes with what is loaded after an evaluation."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    x, net, other = torch.ones(2, WIDTH), Net(), Net()
    model = FSDP(net, **_arguments(wrap))
    _evaluate(model, x)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(other.state_dict())
    with torch.no_grad():
        return torch.allclose(model(x), other(x))


def _flat(model: nn.Module) -> list[torch.Tensor]:
    """Return this rank's part of each unit, the root's first."""
    units: Any = FSDP.fsdp_modules(model)
    return [unit._handle.flat_param._local_shard for unit in units]
