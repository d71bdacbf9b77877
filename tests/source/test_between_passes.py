"""Gradients that are emptied or changed between a forward and its backward, where FSDP2 shows none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from fsdp_migrate.source.between_passes import CHANGED, EMPTIED
from tests.source.samples import IMPORTS


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = """\
def clear(m):
    for p in m.parameters():
        p.grad = None

def clear_all(params):
    for p in params:
        p.grad = None

def loss_of(m, x):
    return m(x).sum()

def step(m, x):
    loss_of(m, x).backward()

def train(net, batches, criterion, scaler):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    held = list(model.parameters())
    for x in batches:
"""
FORWARD = "loss = model(x).sum()\n"
BACKWARD = "loss.backward()\noptimizer.step()\n"
LOOP = "for p in model.parameters():\n    p.grad = None\n"
GUARDED = "for n, p in model.named_parameters():\n    if p.grad is not None:\n        p.grad{}\n"


def _said(body: str, header: str = TRAIN) -> list[str]:
    inner = "".join(f"        {line}\n" for line in body.splitlines())
    names = {EMPTIED: "emptied", CHANGED: "changed"}
    found = [use for use in scan_source(f"{IMPORTS}{header}{inner}") if use.becomes in names]
    assert {use.code for use in found} <= {"FM423"}
    return [names[use.becomes] for use in found]


@pytest.mark.parametrize(
    "loop",
    [
        LOOP,
        GUARDED.format(".zero_()"),
        GUARDED.format(".data.zero_()"),
        GUARDED.format(".detach_()\n        p.grad.zero_()"),
        "for p in model.parameters():\n    p.grad = torch.zeros_like(p)\n",
        "for p in model.parameters():\n    del p.grad\n",
        "for p in net.parameters():\n    p.grad = None\n",
        "for m in model.modules():\n    for p in m.parameters(recurse=False):\n        p.grad = None\n",
        "shown = [p for p in model.parameters() if p.requires_grad]\nfor p in shown:\n    p.grad = None\n",
        "[p.grad.zero_() for p in model.parameters() if p.grad is not None]\n",
        "torch._foreach_zero_([p.grad for p in model.parameters()])\n",
        "model.head.weight.grad = None\n",
        "clear(model)\n",
        "clear_all(model.parameters())\n",
        f"if first:\n    {LOOP.replace(chr(10), chr(10) + '    ')}",
    ],
)
def test_what_empties_gradients_between_the_two(loop: str) -> None:
    assert _said(f"{FORWARD}{loop}{BACKWARD}") == ["emptied"]


@pytest.mark.parametrize("how", [".mul_(0.9)", " *= 0.9", ".add_(p)", ".data.div_(2)", " = p.grad * 2"])
def test_and_what_changes_them(how: str) -> None:
    assert _said(f"{FORWARD}{GUARDED.format(how)}{BACKWARD}") == ["changed"]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("loss = loss_of(model, x)\n", BACKWARD),
        ("loss = criterion(model, x)\nloss = loss / 2\n", BACKWARD),
        (FORWARD, "scaler.scale(loss).backward()\n"),
        (FORWARD, "torch.autograd.backward(loss)\n"),
        # The root stays whole after a forward without gradients, too.
        ("with torch.no_grad():\n    before = model(x)\n", "step(model, x)\n"),
    ],
)
def test_the_passes_that_it_stands_between(forward: str, backward: str) -> None:
    assert _said(f"{forward}{LOOP}{backward}") == ["emptied"]


@pytest.mark.parametrize(
    "body",
    [
        f"{LOOP}{FORWARD}{BACKWARD}",
        f"{FORWARD}{BACKWARD}{LOOP}",
        f"{FORWARD}loss.backward()\n{GUARDED.format('.mul_(0.5)')}optimizer.step()\n",
        f"step(model, x)\n{LOOP}",
        f"model(x).sum().backward()\n{LOOP}model(x).sum().backward()\n",
        f"clear(model)\n{FORWARD}{BACKWARD}clear_all(model.parameters())\n",
        # These are the sharded ones at all times.
        f"{FORWARD}for g in opt.param_groups:\n    for p in g['params']:\n        p.grad = 0\n{BACKWARD}",
        f"{FORWARD}for p in held:\n    p.grad = None\n{BACKWARD}",
        f"{FORWARD}clear_all(held)\n{BACKWARD}",
        f"{FORWARD}optimizer.zero_grad()\n{BACKWARD}",
        f"{FORWARD}model.zero_grad()\n{BACKWARD}",
        # Another model's, and what is only read.
        f"{FORWARD}for p in other.parameters():\n    p.grad = None\n{BACKWARD}",
        f"{FORWARD}for p in model.parameters():\n    seen = p.grad is None\n{BACKWARD}",
        f"{FORWARD}for p in model.parameters():\n    p.grad.requires_grad_(False)\n{BACKWARD}",
        # A forward of which no backward follows.
        f"{FORWARD}{LOOP}",
        f"if last:\n    {FORWARD}else:\n    clear(model)\n{FORWARD}{BACKWARD}",
    ],
)
def test_where_it_reaches_the_sharded_ones(body: str) -> None:
    assert _said(body) == []


LIGHTNING = """\
import lightning as L
from lightning.pytorch.strategies import FSDPStrategy

class Net(L.LightningModule):
    def training_step(self, batch, i):
        return self.net(batch).sum()

    def {hook}(self, *given):
        if True:
"""


@pytest.mark.parametrize(
    ("hook", "said"),
    [("optimizer_zero_grad", ["emptied"]), ("on_before_zero_grad", ["emptied"]), ("on_after_backward", [])],
)
def test_in_what_lightning_runs_there(hook: str, said: list[str]) -> None:
    body = "for p in self.parameters():\n    p.grad = None\n\ntrainer = L.Trainer(strategy=FSDPStrategy())\n"
    header = LIGHTNING.format(hook=hook)
    inner = "".join(f"            {line}\n" for line in body.splitlines()[:2])
    found = scan_source(f"{header}{inner}{body.splitlines()[-1]}\n")
    assert ["emptied" for use in found if EMPTIED in use.becomes] == said


HELPERS = """\
import torch

def clear(m):
    for p in m.parameters():
        p.grad = None

def clear_all(params):
    for p in params:
        if p.grad is not None:
            p.grad.data.zero_()

def clear_by(scale, *, model):
    clear(model)

def halve(m):
    torch._foreach_mul_([p.grad for p in m.parameters()], 0.5)

def count(m):
    return sum(p.grad is not None for p in m.parameters())

def loss_of(m, x):
    return m(x).sum()

def step(m, x):
    loss_of(m, x).backward()

def backprop(loss):
    loss.backward()
"""
TRAINS = """\
import helpers
from helpers import backprop, clear_all, clear_by, count, halve, loss_of, step
from helpers import clear as empty

def train(net, batches):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    held = list(model.parameters())
    for x in batches:
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{FORWARD}empty(model)\n{BACKWARD}", ["emptied"]),
        (f"{FORWARD}helpers.clear(m=model)\n{BACKWARD}", ["emptied"]),
        (f"{FORWARD}clear_all(model.parameters())\n{BACKWARD}", ["emptied"]),
        (f"{FORWARD}clear_by(1.0, model=model)\n{BACKWARD}", ["emptied"]),
        (f"{FORWARD}halve(model)\n{BACKWARD}", ["changed"]),
        ("loss = loss_of(model, x)\nempty(model)\nbackprop(loss)\n", ["emptied"]),
        (f"loss = loss_of(model, x)\n{LOOP}backprop(loss)\n", ["emptied"]),
        ("with torch.no_grad():\n    a = loss_of(model, x)\nempty(model)\nstep(model, x)\n", ["emptied"]),
        # Above the forward, below the backward, of the sharded ones, of another model, and what only reads.
        (f"empty(model)\n{FORWARD}{BACKWARD}empty(model)\n", []),
        ("step(model, x)\nempty(model)\nstep(model, x)\n", []),
        (f"{FORWARD}clear_all(held)\n{BACKWARD}", []),
        (f"{FORWARD}empty(teacher)\n{BACKWARD}", []),
        (f"{FORWARD}count(model)\n{BACKWARD}", []),
        (f"{FORWARD}model.clear(model)\n{BACKWARD}", []),
    ],
)
def test_functions_of_other_files(tmp_path: Path, body: str, said: list[str]) -> None:
    inner = "".join(f"        {line}\n" for line in body.splitlines())
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(f"{IMPORTS}{TRAINS}{inner}")
    names = {EMPTIED: "emptied", CHANGED: "changed"}
    uses = scan_paths([tmp_path]).uses
    assert [names[use.becomes] for use in uses if use.becomes in names] == said
