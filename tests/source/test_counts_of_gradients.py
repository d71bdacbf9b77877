"""Counts of parameters that have a gradient, and of gradients that are something."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.counts_of_gradients import UNCOUNTED
from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

LOOP = "model = FSDP(net)\nbad = 0\nfor p in model.parameters():\n    {}\n"
ADDS = "\n        bad += 1"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"if p.grad is not None:{ADDS}", True),
        (f"if p.grad is not None and p.requires_grad:{ADDS}", True),
        (f"if p.grad is None or p.grad.sum() == 0:{ADDS}", True),
        ("if p.grad is not None:\n        if p.requires_grad:\n            bad += 1", True),
        # Of gradients that are not finite there are none under either.
        (f"if p.grad is not None and not torch.isfinite(p.grad).all():{ADDS}", False),
        (f"if p.grad is not None and p.requires_grad and p.grad.isnan().any():{ADDS}", False),
        ("if p.grad is not None:\n        if torch.isnan(p.grad).any():\n            bad += 1", False),
        ("if p.grad is not None:\n        for k in range(3):\n            bad += 1", False),
        # A place in a list, which nobody is told.
        (f"if p.grad is not None:\n        p.grad.copy_(kept[bad]){ADDS}", False),
        (f"if p.grad is not None:\n        p.grad.copy_(kept[bad]){ADDS}\nprint(bad)", True),
        ("if p.grad is not None:\n        with torch.no_grad():\n            p.mul_(2)", False),
    ],
)
def test_what_is_counted(body: str, *, is_said: bool) -> None:
    assert any(UNCOUNTED in use.becomes for use in uses(LOOP.format(body))) is is_said


@pytest.mark.parametrize(
    ("test", "is_said"),
    [("p.grad is not None", True), ("p.grad is not None and p.grad.isnan().any()", False)],
)
def test_what_is_counted_in_one_expression(test: str, *, is_said: bool) -> None:
    found = uses(f"model = FSDP(net)\nn = sum(1 for p in model.parameters() if {test})\n")
    assert any(UNCOUNTED in use.becomes for use in found) is is_said
