"""Whose parameters the names of a project's functions hold, what functions give, and what objects keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.held_parameters import HeldParameters
from fsdp_migrate.source.project import Definition, Place, Project, dotted


if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator


pytestmark = pytest.mark.any_torch

_PATH = Path("parts.py")


def held_in(code: str) -> tuple[HeldParameters, Project]:
    project = Project({_PATH: code})

    def named(func: ast.expr, place: Place) -> Iterator[Definition]:
        return filter(None, [project.named(dotted(func) or "", place)])

    return HeldParameters(named), project


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ("return [p for p in net.parameters() if p.requires_grad]", {(-1, 0, 1, "net")}),
        ("return dict(net.head.named_parameters())", {(-1, 0, 1, "net")}),
        ("return {'params': list(net.parameters())}, cfg", {(0, 2, 1, "net")}),
        ("return [n for n, p in net.named_parameters()]", set()),
        ("return [p.numel() for p in net.parameters()]", set()),
        ("return helper(net)", {(-1, 0, 1, "net")}),
        ("return [p for m in net.layers for p in m.parameters()]", set()),
        ("x = []\n    for p in net.parameters():\n        x.append(p)\n    return x", {(-1, 0, 1, "net")}),
        ("inner = unwrap(net)\n    return list(inner.parameters())", {(-1, 0, 1, "net")}),
        ("made = Net()\n    return made, list(made.parameters())", {(1, 2, -2, "0")}),
    ],
)
def test_what_a_function_gives(body: str, given: set[tuple[int, int, int, str]]) -> None:
    helper = "def helper(model):\n    return tuple(model.parameters())\n"
    held, project = held_in(f"{helper}def pick(cfg, net):\n    {body}\n")
    module = project.module(_PATH)
    assert module is not None
    assert held.given(module.definitions["pick"]) == given


@pytest.mark.parametrize(
    ("keeps", "reads", "expected"),
    [
        ("list(net.parameters())", "self.kept", [(1, "net")]),
        ("list(net.parameters())", "self.other", []),
        ("net", "self.kept", []),
        ("[p.clone() for p in net.parameters()]", "self.kept", []),
    ],
)
def test_what_objects_keep(keeps: str, reads: str, expected: list[tuple[int, str]]) -> None:
    code = f"class EMA:\n    def __init__(self, cfg, net):\n        self.kept = {keeps}\n"
    held, project = held_in(f"{code}    def step(self):\n        use({reads})\n")
    module = project.module(_PATH)
    assert module is not None
    assert list(held.kept(module.definitions["EMA"])) == expected


def test_what_a_method_has_its_object_keep() -> None:
    code = (
        "class EMA:\n    def reset(self, net):\n        self.kept = list(net.parameters())\n"
        "    def count(self, net):\n        self.n = [n for n, p in net.named_parameters()]\n"
        "    def step(self):\n        use(self.kept, self.n)\n"
    )
    held, project = held_in(code)
    module = project.module(_PATH)
    assert module is not None
    methods = ("EMA.reset", "EMA.count", "EMA.step")
    assert [list(held.kept_by(module.definitions[name])) for name in methods] == [[(0, "net")], [], []]


def test_what_the_names_of_a_method_hold() -> None:
    code = (
        "class A:\n    def f(self):\n        self.x: list = list(self.net.parameters())\n        y = self.x\n"
    )
    held, project = held_in(code)
    module = project.module(_PATH)
    assert module is not None
    function = module.definitions["A.f"]
    assert held.held(function.node, Place(module, "A.f")) == {"self.x": {"self.net"}, "y": {"self.net"}}
