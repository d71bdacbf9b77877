"""Switches of settings on which every wrapping of a project depends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

OPTIMIZER = """\
import torch
import torch.distributed as dist
class Zero(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
                p.data.add_(p.grad, alpha=-1e-3)
"""
MAIN = """\
import torch
from config import cfg
from opt import Zero
def wrap(model, cfg_2=None):
    if {on}:
        model = FSDP(model)
    return model
def make(model, other=None):
    if {off}:
        return Zero(model.parameters(), {{}})
    return torch.optim.AdamW(model.parameters())
def main(net):
    model = wrap(net)
    optimizer = make(model)
    optimizer.step()
"""
ON, OFF = "cfg.zero.fsdp", "not cfg.zero.fsdp"


@pytest.mark.parametrize(
    ("on", "off", "more", "is_said"),
    [
        (ON, OFF, "", False),
        ("cfg.zero.fsdp and cfg.flash", OFF, "", False),
        (ON, "other and not cfg.zero.fsdp", "", False),
        ("cfg.zero.fsdp or cfg.flash", OFF, "", True),
        (ON, ON, "", True),
        (ON, "not cfg.other.fsdp", "", True),
        (ON, "not other.zero.fsdp", "", True),
        ("cfg_2.zero.fsdp", OFF, "", True),
        # What wraps without it, what may wrap, and what sets it on the way.
        (ON, OFF, f"{FSDP}def again(net):\n    return FSDP(net)\n", True),
        (ON, OFF, "from main import FSDP\nnet = FSDP(net)\n", True),
        (ON, OFF, f"{FSDP}WRAPPERS = {{'a': FSDP}}\n", True),
        (ON, OFF, f"{FSDP}class Mine(FSDP):\n    pass\n", True),
        (ON, OFF, "from config import cfg\ncfg.zero.fsdp = False\n", True),
        (ON, OFF, f"{FSDP}assert not isinstance(net, FSDP)\n", False),
    ],
)
def test_an_optimizer_that_is_made_without_it_steps_no_sharded_model(
    tmp_path: Path, on: str, off: str, more: str, *, is_said: bool
) -> None:
    (tmp_path / "config.py").write_text("cfg = load()\n")
    (tmp_path / "opt.py").write_text(OPTIMIZER)
    (tmp_path / "main.py").write_text(f"{FSDP}{MAIN.format(on=on, off=off)}")
    (tmp_path / "more.py").write_text(more)
    assert ("FM445" in {each.code for each in scan_paths([tmp_path]).uses}) is is_said
