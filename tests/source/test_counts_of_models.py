"""Counts that a sharded model is asked for by its class's methods, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_source
from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

NET = """\
class Net(nn.Module):
    @property
    def num_params(self):
        return sum(p.numel() for p in self.parameters())

    def flops(self):
        return 2 * self.num_params

    @property
    def width(self):
        return self.cfg.width
"""
RUN = f"{FSDP}{{}}\ndef run(net, world_size):\n    model = FSDP(net)\n    n = {{}}\n    {{}}\n"
SIZE = "return Meter(6 * n, 3.0, world_size)"


def _is_said(net: str, count: str, end: str) -> bool:
    found = scan_source(RUN.format(net, count, end))
    return any(use.code == "FM423" and "counts its whole" in use.becomes for use in found)


@pytest.mark.parametrize(
    ("count", "end", "expected"),
    [
        ("model.num_params", SIZE, True),
        ("int(getattr(model, 'num_params', 0))", SIZE, True),
        ("model.flops()", SIZE, True),
        ("model.num_parameters() * world_size", "pass", True),
        ("model.num_params", "x = flops(n, 4)\n    return Meter(x, world_size=dist.world_size)", True),
        ("model.num_params", "print(n, world_size)", False),
        ("model.num_params", "x = dict(params=n, world_size=world_size)", False),
        ("model.num_params", "return Meter(n, 3.0)", False),
        ("model.num_params", "return Meter(4, world_size)", False),
        ("model.width", SIZE, False),
        ("other.num_params", SIZE, False),
    ],
)
def test_a_count_is_named_where_it_meets_the_number_of_ranks(count: str, end: str, expected: bool) -> None:
    assert _is_said(NET, count, end) is expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("return self.flops() + 1", True),
        ("return sum(each.nelement() for each in self.parameters())", True),
        ("return len(list(self.parameters()))", False),
        ("return self.weight.numel()", False),
        ("return [each.numel() for each in self.parameters()]", False),
        ("print(sum(each.numel() for each in self.parameters()))", False),
        ("return other.num_params", False),
        ("return self.cfg.num_params", False),
    ],
)
def test_methods_that_count_are_those_that_give_a_count(method: str, *, expected: bool) -> None:
    net = f"{NET}\n    def own(self):\n        {method}\n"
    assert _is_said(net, "model.own()", SIZE) is expected


def test_a_class_that_counts_parts_itself_is_none() -> None:
    own = NET.replace("p.numel()", "p.to_local().numel()")
    assert not _is_said(own, "model.num_params", SIZE)


def test_the_class_may_stand_in_another_file(tmp_path: Path) -> None:
    files = {"net.py": f"from torch import nn\n{NET}", "run.py": RUN.format("", "model.num_params", SIZE)}
    assert "FM423 the model counts its whole" in after(tmp_path, files, "run.py")
