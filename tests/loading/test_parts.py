"""Which of several models in one checkpoint is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.errors import CheckpointMismatchError
from fsdp_migrate.runtime import full_optimizer_state_dict, optim_state_dict_to_load


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Kind = Callable[..., torch.optim.Optimizer]
    Make = Callable[[], dict[str, nn.Module]]


pytestmark = pytest.mark.any_torch


def net(width: int = 3, depth: int = 1) -> nn.Sequential:
    """Return a model whose parts have names of their own."""
    middle = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(2, width), nn.LayerNorm(width), *middle)


def run() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and its optimizer after a step."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return model, optimizer


def saved(folder: Path, **parts: Any) -> Path:
    """Save some parts in one file."""
    torch.save({**parts, "step": 3}, folder / "two.pt")
    return folder / "two.pt"


def is_same(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two models have the same weights."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("names", [("actor", "critic"), ("model", "model_1"), ("student", "teacher")])
def test_of_two_that_fit_equally_one_must_be_named(tmp_path: Path, names: tuple[str, str]) -> None:
    """The first was loaded for both."""
    one, other = net(), net()
    file = saved(tmp_path, **{names[0]: one.state_dict(), names[1]: other.state_dict()})
    fresh = net()
    before = [value.clone() for value in fresh.state_dict().values()]
    with pytest.raises(CheckpointMismatchError, match=rf"`{names[0]}` and `{names[1]}`.*part='{names[0]}'"):
        load_checkpoint(file, fresh)
    assert all(map(torch.equal, before, fresh.state_dict().values()))
    load_checkpoint(file, fresh, part=names[1])
    assert is_same(fresh, other)


def test_lists_and_nested_models_are_named_by_where_they_lie(tmp_path: Path) -> None:
    one, other = net(), net()
    file = saved(tmp_path, a={"model": one.state_dict()}, b={"model": other.state_dict()})
    with pytest.raises(CheckpointMismatchError, match=r"part='a\.model'"):
        load_checkpoint(file, net())
    fresh = net()
    load_checkpoint(file, fresh, part="b.model", weights_only=True)
    assert is_same(fresh, other)


def test_the_optimizer_is_that_of_the_part(tmp_path: Path) -> None:
    (one, its), (other, others) = run(), run()
    file = saved(
        tmp_path,
        a={"net": one.state_dict(), "opt": its.state_dict()},
        b={"net": other.state_dict(), "opt": others.state_dict()},
    )
    fresh = net()
    optimizer = torch.optim.Adam(fresh.parameters())
    load_checkpoint(file, fresh, optimizer, part="b.net")
    assert is_same(fresh, other)
    for new, old in zip(fresh.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[new]["exp_avg"], others.state[old]["exp_avg"])


@pytest.mark.parametrize("name", ["model", "net", "state_dict"])
def test_one_that_is_called_the_model_needs_no_name(tmp_path: Path, name: str) -> None:
    one, other = run()[0], net()
    file = saved(tmp_path, teacher=other.state_dict(), **{name: one.state_dict()})
    fresh = net()
    load_checkpoint(file, fresh)
    assert is_same(fresh, one)


@pytest.mark.parametrize("larger", [net(width=5), net(depth=2)])
def test_one_of_another_size_is_another_model(tmp_path: Path, larger: nn.Module) -> None:
    own = net()
    file = saved(tmp_path, teacher=larger.state_dict(), student=own.state_dict())
    fresh = net()
    load_checkpoint(file, fresh)
    assert is_same(fresh, own)


def test_an_average_can_be_asked_for(tmp_path: Path) -> None:
    one, average = net(), net()
    file = saved(tmp_path, model=one.state_dict(), ema=average.state_dict())
    fresh = net()
    load_checkpoint(file, fresh)
    assert is_same(fresh, one)
    load_checkpoint(file, fresh, part="ema", weights_only=True)
    assert is_same(fresh, average)


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, actor=net().state_dict(), critic=net().state_dict())
    with pytest.raises(CheckpointMismatchError, match=r"'other'.*It has: `actor`, `critic`\."):
        load_checkpoint(file, net(), part="other")


def _by_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state keyed by names, as ``full_optimizer_state_dict`` gives it."""
    return full_optimizer_state_dict(model, optimizer, rank0_only=False)


def _apart(models: dict[str, nn.Module], kind: Kind = torch.optim.Adam) -> dict[str, Any]:
    """Return the parts of a script with several models, each with its optimizer after a step of its own."""
    parts: dict[str, Any] = {}
    for number, (name, model) in enumerate(models.items()):
        optimizer = kind(model.parameters(), lr=0.1 + number)
        for param in model.parameters():
            param.grad = torch.full_like(param, 1.0 + number)
        optimizer.step()
        parts |= {name: model.state_dict(), f"opt_{name[0]}": _by_names(model, optimizer)}
    return parts


class Named(nn.Module):
    """A model whose parameters begin with a name of its own."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(width, width))


TWO: list[Make] = [
    lambda: {"actor": Named("stem", 3), "critic": Named("net", 3)},
    lambda: {"actor": Named("net", 3), "critic": Named("net", 4)},
    lambda: {"actor": Named("net", 3), "critic": Named("net", 3)},
]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("make", TWO)
def test_states_by_names_of_two_models_are_told_apart(make: Make, kind: Kind, tmp_path: Path) -> None:
    parts = _apart(make(), kind)
    file = saved(tmp_path, **parts)
    for number, (name, fresh) in enumerate(make().items()):
        optimizer = kind(fresh.parameters(), lr=9.0)
        load_checkpoint(file, fresh, optimizer, part=name)
        assert optimizer.param_groups[0]["lr"] == 0.1 + number
        found = _by_names(fresh, optimizer)["state"]
        assert found.keys() == parts[f"opt_{name[0]}"]["state"].keys()
        for param, own in found.items():
            for key, value in own.items():
                assert torch.equal(value, parts[f"opt_{name[0]}"]["state"][param][key])


def test_of_two_that_are_alike_neither_is_taken(tmp_path: Path) -> None:
    parts = _apart(TWO[2]())
    names = {"opt_a": "opt1", "opt_c": "opt2"}
    file = saved(tmp_path, **{names.get(key, key): value for key, value in parts.items()})
    fresh = Named("net", 3)
    before = fresh.get_parameter("net.weight").detach().clone()
    optimizer = torch.optim.Adam(fresh.parameters())
    with pytest.raises(
        CheckpointMismatchError, match=r"`opt1` and `opt2`, optimizers of the same parameters"
    ):
        load_checkpoint(file, fresh, optimizer, part="actor")
    assert torch.equal(fresh.get_parameter("net.weight"), before)
    # What the error says to do.
    load_checkpoint(file, fresh, part="actor", weights_only=True)
    optimizer.load_state_dict(optim_state_dict_to_load(fresh, optimizer, torch.load(file)["opt1"]))
    assert _by_names(fresh, optimizer)["state"].keys() == parts["opt_a"]["state"].keys()


def test_two_optimizers_of_one_model_are_both_loaded(tmp_path: Path) -> None:
    model, other = net(), net(width=5)
    weights = [param for param in model.parameters() if param.ndim > 1]
    biases = [param for param in model.parameters() if param.ndim == 1]
    both = [torch.optim.Adam(weights, lr=0.1), torch.optim.Adam(biases, lr=0.2)]
    model(torch.ones(2)).sum().backward()
    for optimizer in both:
        optimizer.step()
    states = {f"opt{number}": _by_names(model, optimizer) for number, optimizer in enumerate(both)}
    file = saved(tmp_path, student=model.state_dict(), teacher=other.state_dict(), **states)
    fresh = net()
    kinds = [[p for p in fresh.parameters() if (p.ndim > 1) is is_weight] for is_weight in (True, False)]
    optimizers = [torch.optim.Adam(params, lr=9.0) for params in kinds]
    load_checkpoint(file, fresh, [*optimizers], part="student")
    assert [each.param_groups[0]["lr"] for each in optimizers] == [0.1, 0.2]
    assert all(len(each.state) == len(own) for each, own in zip(optimizers, kinds, strict=True))
