"""Methods that a constructor alone runs, over files: what they do is done to the plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


BASE = """\
from torch import nn
class Base(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.init_model()
    def init_model(self):
        raise NotImplementedError
"""
NET = """\
import copy
import torch
from torch import nn
from base import Base
class Net(Base):
    def init_model(self):
        self.unet = nn.Linear(4, 4)
        self.unet.load_state_dict(torch.load("unet.pt"))
        self.copy()
    def copy(self):
        self.ref = copy.deepcopy(self.unet)
"""
SETUP = f"""\
{FSDP}from net import Net
def setup(config):
    model = Net(config)
    model.unet = FSDP(model.unet)
    return model
"""


def _said(folder: Path, files: dict[str, str]) -> set[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return {use.code for use in scan_paths([folder]).uses if use.path.endswith(("net.py", "loop.py"))}


@pytest.mark.parametrize(
    ("changed", "by"),
    [
        ("", ""),
        ("self.unet = nn.Linear(4, 4)", "self.unet: nn.Module = nn.Linear(4, 4)"),
        ("class Net(Base)", "class Net(Base, object)"),
        ("self.unet = nn.Linear(4, 4)", "super().init_model()\n        self.unet = nn.Linear(4, 4)"),
    ],
)
def test_what_a_base_class_constructs_is_plain(tmp_path: Path, changed: str, by: str) -> None:
    """FM323 stopped runs at `copy.deepcopy` above all sharding, and FM333 at a load."""
    files = {"base.py": BASE, "net.py": NET.replace(changed, by) if changed else NET, "setup.py": SETUP}
    assert _said(tmp_path, files).isdisjoint({"FM308", "FM323", "FM333"})


@pytest.mark.parametrize(
    "more",
    [
        "def again(model):\n    model.copy()\n",
        "def again(model):\n    Net.copy(model)\n",
        "def again(model):\n    getattr(model, 'copy')()\n",
        "class Other(Net):\n    def on_epoch(self):\n        self.copy()\n",
    ],
)
def test_what_may_run_later_has_the_sharded_model(tmp_path: Path, more: str) -> None:
    assert "FM323" in _said(tmp_path, {"base.py": BASE, "net.py": NET, "setup.py": SETUP + more})


def test_a_hook_of_lightning_runs_later(tmp_path: Path) -> None:
    net = NET.replace("copy()", "on_fit_start()").replace("def copy(self)", "def on_fit_start(self)")
    assert "FM323" in _said(tmp_path, {"base.py": BASE, "net.py": net, "setup.py": SETUP})


def test_a_base_class_that_is_not_seen_may_run_it_later(tmp_path: Path) -> None:
    net = NET.replace("from base import Base", "from other import Base")
    assert "FM323" in _said(tmp_path, {"net.py": net, "setup.py": SETUP})


LOOP = f"""\
import copy
{FSDP}from torch import nn
class Loop:
    def __init__(self, given):
        {{calls}}
    def build(self):
        self.net = nn.Linear(4, 4)
    def teach(self):
        self.teacher = copy.deepcopy(self.net)
    def shard(self):
        self.net = FSDP(self.net)
"""


@pytest.mark.parametrize(
    ("calls", "is_said"),
    [
        ("self.build(); self.teach(); self.shard()", False),
        ("self.build(); self.shard(); self.teach()", True),
        ("self.build(); self.net = FSDP(self.net); self.teach()", True),
        ("self.net = given; self.teach(); self.shard()", True),
    ],
)
def test_the_constructors_order_tells(tmp_path: Path, calls: str, *, is_said: bool) -> None:
    lines = calls.replace("; ", "\n        ")
    made = f"{FSDP}from loop import Loop\ndef make(net):\n    return Loop(FSDP(net))\n"
    said = _said(tmp_path, {"loop.py": LOOP.format(calls=lines), "main.py": made})
    assert ("FM323" in said) is is_said


def test_a_class_below_may_shard_in_its_place(tmp_path: Path) -> None:
    loop = LOOP.format(calls="self.build()\n        self.teach()\n        self.shard()")
    below = "class Early(Loop):\n    def build(self):\n        self.net = FSDP(nn.Linear(4, 4))\n"
    assert "FM323" in _said(tmp_path, {"loop.py": loop + below})
