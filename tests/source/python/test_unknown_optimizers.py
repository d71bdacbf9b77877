"""Optimizers that are made in sight, of parameters that others give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.rules.test_unfollowed import found


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAVES = """\
import torch
from opts import make


def run({given}):
    optimizer = {made}
    torch.save(optimizer.state_dict(), 'x')
"""
KEEPS = """\
import torch
from opts import Wrapper, make


class Agent:
    def update(self, {given}):
        self.optimizer = None
        self.optimizer = {made}
        if half:
            self.optimizer = Wrapper(self.optimizer)
    def save(self, x):
        self.optimizer.load_state_dict(x)
"""


@pytest.mark.parametrize("text", [SAVES, KEEPS])
@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("params, cls", "cls(params, lr=0.1)"),
        ("params", "torch.optim.SGD([p for p in params if p.requires_grad])"),
        ("parameters", "torch.optim.SGD(params=filter(lambda p: p.ndim, parameters))"),
        ("model", "torch.optim.SGD(model.parameters())"),
        ("model, cls", "cls([{'params': model.head.parameters()}, {'params': model.body.parameters()}])"),
        ("model, cfg", "make(model, cfg)"),
        ("optimizer", "Wrapper(optimizer)"),
    ],
)
def test_it_is_as_unknown_as_what_it_is_made_of(tmp_path: Path, text: str, given: str, made: str) -> None:
    half = ", half" if text is KEEPS else ""
    assert len(found(tmp_path, text.format(given=f"{given}{half}", made=made))) == 1


@pytest.mark.parametrize("text", [SAVES, KEEPS])
@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("cfg", "torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=cfg.lr)"),
        ("cfg", "make(cfg)"),
        ("loader, cls", "cls(loader)"),
        ("model", "make(lr=0.1)"),
    ],
)
def test_what_is_made_of_a_plain_model_is_plain(tmp_path: Path, text: str, given: str, made: str) -> None:
    half = ", half" if text is KEEPS else ""
    assert found(tmp_path, text.format(given=f"{given}{half}", made=made)) == {}


def test_an_optimizer_that_is_made_of_both_is_not_named(tmp_path: Path) -> None:
    both = "def run(params, x):\n    optimizer = SGD(params)\n    optimizer = {}\n"
    both += "    optimizer.load_state_dict(x)\n"
    assert len(found(tmp_path, both.format("SGD(params)"))) == 1
    assert found(tmp_path, both.format("SGD(torch.nn.Linear(1, 1).parameters())")) == {}


def test_parameters_that_every_call_shows_to_be_plain(tmp_path: Path) -> None:
    run = "def make(params, x):\n    optimizer = SGD(params)\n    optimizer.load_state_dict(x)\n"
    assert len(found(tmp_path, run)) == 1
    assert found(tmp_path, f"{run}\n\nmake(torch.nn.Linear(1, 1).parameters(), {{}})\n") == {}
