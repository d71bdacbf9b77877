"""Copies of a sharded model's parameters, which torch makes only while they have no gradients."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp_migrate.source import scan_source
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable


HEADER = (
    "import copy, torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "model = FSDP(net)\noptimizer = torch.optim.SGD(model.parameters())\n"
)
WITH, WITHOUT = "loss.backward()\n", "loss.backward()\noptimizer.zero_grad()\n"


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("list(model.parameters())", True),
        ("dict(model.named_parameters())", True),
        ("[p.grad for p in model.parameters()]", True),
        ("list(model.head.parameters())", True),
        ("optimizer.param_groups", True),
        ("optimizer", True),
        ("[p.data for p in model.parameters()]", False),
        ("[p.detach() for p in model.parameters()]", False),
        ("list(other.parameters())", False),
        ("model.config", False),
        ("other", False),
    ],
)
def test_copies_of_parameters(given: str, *, is_said: bool) -> None:
    def is_found(code: str) -> bool:
        return "FM323" in {use.code for use in scan_source(code)}

    made = f"kept = copy.deepcopy({given})\n"
    assert is_found(HEADER + WITH + made) is is_said
    assert not is_found(HEADER + made + WITH)
    assert is_found(f"{HEADER}optimizer.zero_grad()\nmodel(x).sum().backward()\n{made}") is is_said
    assert not is_found(HEADER + WITHOUT + made)
    # A round of a loop meets what the last one left.
    assert is_found(f"{HEADER}for x in loader:\n    {made}    loss.backward()\n") is is_said
    assert not is_found(HEADER.replace("FSDP(net)", "net") + WITH + made)


@pytest.mark.any_torch
def test_a_part_that_may_be_a_unit_is_no_matter_of_gradients() -> None:
    (said,) = [u.becomes for u in scan_source(f"{HEADER}copy.deepcopy(model.encoder)\n") if u.code == "FM323"]
    assert "where it is a unit" in said


def copied() -> dict[str, bool]:
    """Return which copies torch makes of a sharded model's parameters, with and without gradients."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ways: dict[str, Callable[[], object]] = {
        "list": lambda: copy.deepcopy(list(model.parameters())),
        "gradients": lambda: copy.deepcopy([each.grad for each in model.parameters()]),
        "optimizer": lambda: copy.deepcopy(optimizer),
        "part": lambda: copy.deepcopy(model[1]),
        "data": lambda: copy.deepcopy([each.data for each in model.parameters()]),
        "state": lambda: copy.deepcopy(optimizer.state_dict()),
        "clones": lambda: [each.detach().clone() for each in model.parameters()],
    }
    found = {f"{name} before": _works(way) for name, way in ways.items()}
    model(torch.ones(2, 8)).sum().backward()
    found |= {name: _works(way) for name, way in ways.items()}
    optimizer.zero_grad()
    return found | {f"{name} cleared": _works(way) for name, way in ways.items()}


def _works(way: Callable[[], object]) -> bool:
    try:
        way()
    except RuntimeError as error:
        return "invalid python storage" not in str(error)
    return True


def test_torch_copies_no_gradients_of_fsdp2s() -> None:
    """Torch 2.7 still copied them; from which version on it does not was not looked for."""
    is_old = torch.__version__.startswith("2.7.")
    for seen in run_ranks(copied):
        fails = {name for name, works in seen.items() if not works}
        assert fails == (set() if is_old else {"list", "gradients", "optimizer", "part"})
