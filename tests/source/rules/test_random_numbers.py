"""Random numbers for parameters of a sharded model, which torch draws by DTensor's generator (FM336)."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.distributed.tensor._random import OffsetBasedRNGTracker

from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

_LOOP = "for p in model.parameters():\n    {}\n"
DRAWN = [
    _LOOP.format("p.data.add_(torch.randn_like(p) * 0.01)"),
    _LOOP.format("p.grad.add_(torch.randn_like(p.grad), alpha=0.1)"),
    _LOOP.format("torch.nn.init.normal_(p, std=0.02)"),
    _LOOP.format("p.data.normal_(0, 0.02)"),
    "torch.nn.init.uniform_(model.head.weight)\n",
]
OTHERS = [
    _LOOP.format("p.data.add_(torch.zeros_like(p))"),
    _LOOP.format("torch.nn.init.zeros_(p)"),
    _LOOP.format("noise = torch.randn_like(p.to_local())"),
    _LOOP.format("torch.nn.init.normal_(p.to_local())"),
    "noise = torch.randn_like(batch)\nbatch.normal_()\nmodel(noise)\n",
    "for p in net2.parameters():\n    torch.nn.init.normal_(p)\n",
    f"with FSDP.summon_full_params(model):\n    {DRAWN[4]}",
]


@pytest.mark.parametrize("body", [*DRAWN, *OTHERS])
def test_what_draws_for_dtensors(body: str) -> None:
    def found(text: str) -> list[str]:
        return [use.code for use in uses(text) if use.rule == "random-numbers"]

    assert found(f"model = FSDP(net)\n{body}") == ["FM336"] * (body in DRAWN)
    assert not found(f"{body.replace('model', 'net')}model = FSDP(net)\n")


def test_what_torch_does_at_the_first_of_them() -> None:
    """The comment says so; no GPU is here to show it."""
    made = inspect.getsource(OffsetBasedRNGTracker.__init__)
    assert "run_state_sync: bool = True" in made
    assert ".broadcast(rng_state, 0)" in made
    is_old = torch.__version__.startswith("2.7.")
    assert ("_set_device_state(rng_state)" in made) is not is_old
