"""Models that may be sharded or not by what is picked at run time are said to be in doubt, not left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch

START = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def sharded(net):
    return FSDP(net)
def plain(net):
    return net
"""
BY_NAME = """def build(kind):
    wrap = globals()[kind]
    return wrap(Net())
net = build("sharded")
torch.save(net.state_dict(), "model.pt")
"""
BY_KEY = """WRAPS = {Kind.A: sharded, Kind.B: plain}
net = WRAPS[kind](Net())
torch.save(net.state_dict(), "model.pt")
"""
BY_TYPE = """class Trainer:
    def __init__(self, scheduler):
        self.net = FSDP(Net())
        self.scheduler = scheduler
    def save(self):
        for name, part in self.__dict__.items():
            torch.save(part.state_dict(), name)
"""
BY_LOOP = """class Trainer:
    def __init__(self):
        self.net = FSDP(Net())
        self.other = Net()
    def save(self):
        for name in ("net", "other"):
            torch.save(getattr(self, name).state_dict(), name)
"""


def _said(folder: Path, text: str) -> list[tuple[str, str]]:
    (folder / "train.py").write_text(START + text)
    last = (START + text).count("\n")
    found = scan_paths([folder], num_processes=1).uses
    return [(each.code, each.action) for each in found if each.line == last]


@pytest.mark.parametrize("text", [BY_NAME, BY_KEY, BY_TYPE, BY_LOOP])
def test_what_may_be_sharded_is_in_doubt(tmp_path: Path, text: str) -> None:
    assert _said(tmp_path, text) == [("FM333", "commented")]


@pytest.mark.parametrize(
    "text",
    [
        BY_TYPE.replace("self.__dict__.items()", "self.parts.items()"),
        BY_LOOP.replace('"net", "other"', '"scheduler", "other"'),
        BY_TYPE.replace("for name, part in self.__dict__.items():", "for name in [PART]:").replace(
            "part.state", "self.__dict__[name].state"
        ),
        BY_KEY.replace("Kind.A: sharded, ", ""),
        BY_NAME.replace("return wrap(Net())", "return Net()"),
    ],
)
def test_what_is_none_of_them_is_left_alone(tmp_path: Path, text: str) -> None:
    assert ("FM333", "commented") not in _said(tmp_path, text)
