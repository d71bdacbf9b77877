"""Random numbers for parameters of a sharded model, which torch draws by DTensor's generator (FM336)."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.distributed.tensor._random import OffsetBasedRNGTracker

from tests.source.samples import codes, uses


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


@pytest.mark.parametrize(
    ("put", "part", "is_said"),
    [
        ("m.module.head = torch.nn.Linear(8, 1)", "m.module.head", False),
        ("m.module.head = torch.nn.Linear(8, 1)", "m.head", False),
        ("m.module.head = torch.nn.Linear(8, 1)", "m.module.body", True),
        ("m.module.lm.head = torch.nn.Linear(8, 1)", "m.module.lm.head", False),
        ("m.module.lm.head = torch.nn.Linear(8, 1)", "m.module.lm.body", True),
        ("head = torch.nn.Linear(8, 1)\nm.module.head = head", "m.module.head", False),
        ("head = FSDP(torch.nn.Linear(8, 1))\nm.module.head = head", "m.module.head", True),
        ("m.module.add_module('head', torch.nn.Linear(8, 1))", "m.module.head", False),
        ("setattr(m.module, 'head', torch.nn.Linear(8, 1))", "m.module.head", False),
        ("setattr(m.module, 'body', torch.nn.Linear(8, 1))", "m.module.head", True),
        ("m.module.head = shard(m.module.head)", "m.module.head", True),
    ],
)
def test_a_layer_that_was_put_into_a_sharded_model_is_plain(put: str, part: str, *, is_said: bool) -> None:
    body = f"m = FSDP(net)\n{put}\ntorch.nn.init.normal_({part}.weight)\n"
    assert (("FM336", "commented") in codes(body)) is is_said


@pytest.mark.parametrize(("between", "is_said"), [("", False), ("        self.shard()\n", True)])
def test_a_layer_of_a_model_that_is_sharded_elsewhere_is_plain_at_once(
    between: str, *, is_said: bool
) -> None:
    body = (
        "class Policy:\n    def shard(self):\n        self.net = FSDP(self.net)\n    def put(self):\n"
        f"        self.net.module.head = torch.nn.Linear(8, 1)\n{between}"
        "        torch.nn.init.normal_(self.net.module.head.weight)\n"
    )
    assert (("FM336", "commented") in codes(body)) is is_said
