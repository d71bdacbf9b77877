"""Fabrics and Accelerators that functions of a project are given, whatever they call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAIN = """\
import torch
from lightning.fabric import Fabric
from lib import *
from lib import wrap, outer, Loop


def main(net, optimizer, data):
    f = Fabric(strategy="fsdp")
    {}
    print([p.grad.cpu().numpy() for p in model.parameters()])
"""
LIB = """\
def wrap(tools, net, optimizer):
    net, optimizer = tools.setup(net, optimizer)
    return net, optimizer


def outer(things, net):
    return inner(things, net)


def inner(kit, net):
    return kit.setup(net)


class Loop:
    def __init__(self, engine, net):
        self.engine = engine
        self.net = self.engine.setup(net)

    def shard(self, kit, net):
        return kit.setup(net)

    def show(self):
        print([p.grad.cpu().numpy() for p in self.net.parameters()])
"""


@pytest.mark.parametrize(
    ("makes", "is_said"),
    [
        ("model, optimizer = wrap(f, net, optimizer)", True),
        ("model, optimizer = wrap(tools=f, net=net, optimizer=optimizer)", True),
        ("model, optimizer = wrap(Fabric(strategy='fsdp'), net, optimizer)", True),
        ("model = outer(f, net)", False),  # `outer` itself does not ask it to shard
        ("model = Loop(f, net).net", True),
        ("model = Loop(f, net).shard(f, net)", True),
        ("model, optimizer = wrap(data, net, optimizer)", False),
        ("model = Loop(data, net).net", False),
    ],
)
def test_a_function_calls_it_by_a_name_of_its_own(tmp_path: Path, makes: str, *, is_said: bool) -> None:
    assert _is_said(tmp_path, {"main.py": MAIN.format(makes), "lib.py": LIB}, "main.py") is is_said


def test_an_object_keeps_it(tmp_path: Path) -> None:
    for given, is_said in (("f", True), ("data", False)):
        files = {"main.py": MAIN.format(f"model = Loop({given}, net)"), "lib.py": LIB}
        assert _is_said(tmp_path, files, "lib.py") is is_said


def _is_said(folder: Path, files: dict[str, str], wanted: str) -> bool:
    for name, text in files.items():
        (folder / name).write_text(text.replace("from lib import *\n", ""))
    found = (use for use in scan_paths([folder]).uses if use.path.endswith(wanted))
    return any(use.code in {"FM334", "FM336", "FM423"} for use in found)
