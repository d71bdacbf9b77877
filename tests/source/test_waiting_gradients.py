"""Gradients that are asked for in a no_sync window, where FSDP2 shows none."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from fsdp_migrate.source.waiting_gradients import ALWAYS, AT_TIMES
from tests.source.samples import IMPORTS


pytestmark = pytest.mark.any_torch

HEADER = f"{IMPORTS}from contextlib import nullcontext\n"
HELPER = "def bad(m):\n    return any(p.grad.isnan().any() for p in m.parameters())\n\n"
LOOP = """\
def train(net, batches, optimizer, scaler):
    model = FSDP(net)
    for i, x in enumerate(batches):
        last = (i + 1) % 2 == 0
{body}
    model(x).sum().backward()
    total = sum(p.grad.norm() for p in model.parameters())
    optimizer.step()
"""
ALONE = "with model.no_sync():\n    model(x).sum().backward()\n"
CHOSEN = "with nullcontext() if last else model.no_sync():\n    model(x).sum().backward()\n"
BY_NAME = "ctx = nullcontext if last else model.no_sync\nwith ctx():\n    model(x).sum().backward()\n"
BRANCHES = (
    "if last:\n    model(x).sum().backward()\n"
    "else:\n    with model.no_sync():\n        model(x).sum().backward()\n"
)
NANS = "nans = any(p.grad is not None and p.grad.isnan().any() for p in model.parameters())"


def _said(body: str) -> list[tuple[str, bool]]:
    """Return what each comment about gradients that wait says, and whether it is more than that."""
    inner = "".join(f"        {line}\n" for line in body.splitlines())
    uses = scan_source(f"{HEADER}{HELPER}{LOOP.format(body=inner.rstrip())}")
    found = [use.becomes for use in uses if use.code == "FM423"]
    every = (("always", ALWAYS), ("at times", AT_TIMES))
    return [(name, each != text) for each in found for name, text in every if each.startswith(text)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{ALONE}    norm = sum(p.grad.norm() for p in model.parameters())", "always"),
        (f"{ALONE}{NANS}", "always"),
        (
            f"{ALONE}for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(2)",
            "always",
        ),
        (f"{ALONE}stop = bad(model)", "always"),
        (f"{ALONE}torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)", "always"),
        (f"{ALONE}scaler.unscale_(optimizer)", "always"),
        (f"{CHOSEN}{NANS}", "at times"),
        (f"{CHOSEN}    {NANS}", "at times"),
        (f"{ALONE}    if last:\n        {NANS}", "always"),
        (f"{BRANCHES}{NANS}", "at times"),
        (f"{BY_NAME}{NANS}", "at times"),
        (f"{CHOSEN}if not {NANS.partition('= ')[2]}:\n    continue", "at times"),
    ],
)
def test_what_asks_for_gradients_while_they_wait(body: str, said: str) -> None:
    assert [name for name, _ in _said(body)] == [said]


@pytest.mark.parametrize(
    "body",
    [
        f"{CHOSEN}if last:\n    {NANS}\n    optimizer.step()",
        f"{CHOSEN}if not last:\n    continue\n{NANS}",
        f"{CHOSEN}    if last:\n        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
        f"{ALONE}model(x).sum().backward()\n{NANS}",
        (
            f"if last:\n    model(x).sum().backward()\n    {NANS}\nelse:\n    with model.no_sync():\n"
            "        model(x).sum().backward()"
        ),
        f"{BRANCHES}    continue\n{NANS}",
        "with model.no_sync():\n    y = model(x)",
        f"{NANS}\n{ALONE}",
        # The step's own switch, by a name that speaks of gradients.
        f"grad_step = last\n{CHOSEN.replace('last', 'grad_step')}if grad_step:\n    {NANS}",
    ],
)
def test_and_what_asks_where_they_are_reduced(body: str) -> None:
    assert _said(body) == []


def test_a_statistic_has_both_where_gradients_wait_at_times() -> None:
    assert _said(f"{CHOSEN}norm = sum(p.grad.norm() for p in model.parameters())") == [("at times", True)]
