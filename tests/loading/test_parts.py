"""Which of several models in one checkpoint is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.errors import CheckpointMismatchError


if TYPE_CHECKING:
    from pathlib import Path


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
