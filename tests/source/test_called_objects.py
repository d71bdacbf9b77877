"""Modules and other objects of a project that are called: what they are given comes to their ``forward``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

LOSSES = """\
import torch


class Norm(torch.nn.Module):
    def forward(self, model):
        total = torch.tensor(0.0)
        for p in model.parameters():
            total = total + p.square().sum()
        return total


class Loss(torch.nn.Module):
    def forward(self, out):
        return out.mean()


class Registry:
    _losses = {"loss": Loss, "norm": Norm}

    @classmethod
    def get(cls, name, **kwargs):
        return cls._losses[name](**kwargs)


def make(names):
    made = {}
    for name in names:
        made[name] = Registry.get(name)
    return made


def add_up(loss, losses, net=None):
    for name, each in losses.items():
        loss = loss + each(net)
    return loss
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from losses import Loss, Norm, Registry, add_up, make


class Trainer:
    def __init__(self, net, names):
        self.model = FSDP(net)
        self.norm = Norm()
        self.losses = make(names)

    def step(self, x):
        loss = self.model(x).mean()
        {}
        loss.backward()
"""


def found(folder: Path, line: str, losses: str = LOSSES) -> set[int]:
    """Return the lines of the losses that have a finding, in a project that trains so."""
    (folder / "losses.py").write_text(losses)
    (folder / "train.py").write_text(TRAIN.format(line))
    return {use.line for use in scan_paths([folder]).uses if use.path == str(folder / "losses.py")}


SQUARE = LOSSES.splitlines().index("            total = total + p.square().sum()") + 1


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("loss = loss + Norm()(self.model)", True),
        ("loss = loss + self.norm(self.model)", True),
        ("norm = Norm()\n        loss = loss + norm(self.model)", True),
        ("norm = Registry.get('norm')\n        loss = loss + norm(self.model)", True),
        ("loss = loss + Registry.get('norm')(self.model)", True),
        ("loss = add_up(loss, self.losses, net=self.model)", True),
        ("loss = loss + self.norm(other)", False),
        ("loss = loss + Loss()(self.model(x))", False),
        ("loss = loss + self.norm.get(self.model)", False),
    ],
)
def test_what_an_object_is_called_with_comes_to_its_forward(
    tmp_path: Path, line: str, *, is_said: bool
) -> None:
    assert (SQUARE in found(tmp_path, line)) is is_said


@pytest.mark.parametrize(
    ("old", "new", "is_said"),
    [
        ("def forward(self, model)", "def __call__(self, model)", True),
        ("class Norm(torch.nn.Module)", "class Norm(Loss2)", True),
        ("class Norm(torch.nn.Module)", "class Norm", False),
    ],
)
def test_a_class_that_is_no_module_runs_no_forward(
    tmp_path: Path, old: str, new: str, *, is_said: bool
) -> None:
    losses = LOSSES.replace(old, new, 1)
    assert (SQUARE in found(tmp_path, "loss = loss + self.norm(self.model)", losses)) is is_said
