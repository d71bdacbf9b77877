"""Optimizers that one function makes of a sharded model for one script, and of a plain one for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HELPER = """\
import torch
def create_optimizer(model, lr):
    groups = [{"params": [p for n, p in model.named_parameters() if "bias" not in n]}]
    return torch.optim.AdamW(groups, lr=lr)
def optimizer_to(optimizer, device):
    for state in optimizer.state.values():
        for value in state.values():
            value.data = value.data.to(device)
"""
NET = """\
from torch import nn
class Net(nn.Module):
    def __init__(self):
        self.up = nn.Linear(4, 4)
"""
PRETRAIN = f"""\
{FSDP}from helper import create_optimizer
from net import Net
def main():
    model = FSDP(Net(), use_orig_params=True)
    optimizer = create_optimizer(model, 1e-3)
"""
TUNE = """\
from helper import create_optimizer, optimizer_to
from net import Net
def main({given}):
    {made}
    optimizer = create_optimizer(model, lr=1e-3)
    optimizer_to(optimizer, "cpu")
"""


@pytest.mark.parametrize(
    ("given", "made", "is_said"),
    [
        ("", "model = Net()", False),
        ("", "model = Net().cuda()", False),
        ("model", "pass", True),
        ("shard", "model = shard(Net())", True),
    ],
)
def test_a_plain_models_optimizer_is_none_of_the_sharded_one(
    tmp_path: Path, given: str, made: str, *, is_said: bool
) -> None:
    """FM423 stood in a helper of plain models' optimizers, and stopped the launch beside it."""
    tune = TUNE.format(given=given, made=made)
    files = {"helper.py": HELPER, "net.py": NET, "pretrain.py": PRETRAIN, "tune.py": tune}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    said = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("helper.py")}
    assert ("FM423" in said) is is_said


def test_an_object_that_shards_its_parts_is_no_plain_model(tmp_path: Path) -> None:
    net = f"{FSDP}{NET}        self.down = FSDP(nn.Linear(4, 4))\n"
    tune = TUNE.format(given="", made="model = Net()")
    for name, text in {"helper.py": HELPER, "net.py": net, "pretrain.py": PRETRAIN, "tune.py": tune}.items():
        (tmp_path / name).write_text(text)
    assert "FM423" in {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("helper.py")}


UTILS = """\
import torch
from torch import nn
def create_optimizer(model):
    {optimizer} = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {optimizer}
class Checkpoints:
    def save(self, model, optimizer):
        torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, "last.pt")
    def load(self, model, optimizer):
        optimizer.load_state_dict(torch.load("last.pt")["optimizer"])
def check():
    net = nn.Linear(4, 4)
    mine = create_optimizer(net)
    Checkpoints().save(net, mine)
    Checkpoints().load(net, mine)
"""
SHARDED = f"""\
{FSDP}from utils import create_optimizer
def train(net):
    model = FSDP(net, use_orig_params=True)
    optimizer = create_optimizer(model)
"""
REPLICATED = """\
from torch.nn.parallel import DistributedDataParallel as DDP
from utils import Checkpoints, create_optimizer
def train(net):
    model = DDP(net)
    optimizer = create_optimizer(model)
    Checkpoints().save(model, optimizer)
"""


@pytest.mark.parametrize("name", ["adam", "optimizer"])
def test_a_helper_that_gets_other_models_optimizers_alone(tmp_path: Path, name: str) -> None:
    """FM425 told its user to save what raises without a process group."""
    utils = UTILS.format(optimizer=name)
    for file, text in {"utils.py": utils, "sharded.py": SHARDED, "replicated.py": REPLICATED}.items():
        (tmp_path / file).write_text(text)
    uses = [use for use in scan_paths([tmp_path]).uses if use.code == "FM425"]
    assert uses, "not known, and said so: by what nobody calls here it may be another one"
    assert all(use.becomes.startswith("where this optimizer has a sharded model, ") for use in uses)
