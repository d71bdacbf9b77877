"""States of optimizers of which a source only adds up how many elements they have."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("count", "is_said"),
    [
        ("x = sum(v.numel() for s in o.state.values() for v in s.values())\n", True),
        ("for s in o.state.values():\n    for v in s.values():\n        x += v.numel()\n", True),
        ("for s in o.state.values():\n    for v in s.values():\n        x = x + v.numel()\n", True),
        ("for s in o.state.values():\n    for v in s.values():\n        x = v.numel() * 4 + (1 + x)\n", True),
        ("for s in o.state.values():\n    for v in s.values():\n        x = y + v.numel()\n", False),
        ("for s in o.state.values():\n    for v in s.values():\n        x = x * v.numel()\n", False),
        ("for s in o.state.values():\n    for v in s.values():\n        x = x - v.numel()\n", False),
        ("for s in o.state.values():\n    for v in s.values():\n        x = v.numel() > 1\n", False),
        ("for s in o.state.values():\n    y = [1 for v in s.values() if v.numel() > 1]\n", False),
        ("x = sum(v.numel() for s in p.state.values() for v in s.values())\n", False),
    ],
)
def test_elements_of_an_optimizers_state_that_are_added_up(count: str, *, is_said: bool) -> None:
    made = "m = FSDP(net)\no = torch.optim.AdamW(m.parameters())\np = torch.optim.AdamW(net2.parameters())\n"
    assert (("FM423", "commented") in codes(f"{made}{count}")) is is_said
