"""Random numbers for parameters of a sharded model, which torch draws by DTensor's generator (FM336)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor._random import OffsetBasedRNGTracker

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import codes, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_LOOP = "for p in model.parameters():\n    {}\n"
DRAWN = [
    _LOOP.format("p.data.add_(torch.randn_like(p) * 0.01)"),
    _LOOP.format("p.grad.add_(torch.randn_like(p.grad), alpha=0.1)"),
    _LOOP.format("torch.nn.init.normal_(p, std=0.02)"),
    _LOOP.format("p.data.normal_(0, 0.02)"),
    "torch.nn.init.uniform_(model.head.weight)\n",
    _LOOP.format("p.data.add_(torch.empty_like(p).normal_(0, 0.1))"),
    _LOOP.format("noise = torch.zeros_like(p.grad)\n    noise.uniform_()\n    p.grad.add_(noise)"),
    _LOOP.format("p.grad = torch.nn.functional.dropout(p.grad, 0.1)"),
]
OTHERS = [
    _LOOP.format("p.data.add_(torch.zeros_like(p))"),
    _LOOP.format("torch.nn.init.zeros_(p)"),
    _LOOP.format("noise = torch.randn_like(p.to_local())"),
    _LOOP.format("torch.nn.init.normal_(p.to_local())"),
    "noise = torch.empty_like(batch).normal_()\nmodel(torch.nn.functional.dropout(noise))\n",
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


@pytest.mark.parametrize(
    ("drawn", "instead"),
    [
        ("torch.randn_like(p)", "torch.randn_like(p.to_local()), and put it into .to_local() too."),
        ("torch.randint_like(p.grad, 2)", "torch.randint_like(p.grad.to_local(), 2), and put"),
        (
            "torch.bernoulli(torch.full_like(p, 0.5))",
            "torch.bernoulli(torch.full_like(p, 0.5).to_local()), and",
        ),
        ("p.data.normal_(0, std=0.02)", "p.data.to_local().normal_(0, std=0.02)."),
        ("torch.nn.init.uniform_(p, -a, a)", "nn.init.uniform_(p.to_local(), -a, a)."),
    ],
)
def test_what_is_to_be_drawn_instead_is_the_same_for_a_part(drawn: str, instead: str) -> None:
    """A mask was to be `p.to_local().add_(torch.bernoulli(p.to_local()))`, and weights lost their std."""
    found = uses(f"model = FSDP(net)\n{_LOOP.format(f'x = {drawn}')}")
    (said,) = (use.becomes for use in found if use.rule == "random-numbers")
    assert f"Draw for that part alone: {instead}" in said


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


NET = (
    "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    "        self.head = nn.Linear(8, 8)\n        self.scale = nn.Parameter(torch.ones(8))\n"
    "        self.noise = 1\n\n    def draw(self):\n        {}\n\n"
)
SHARDS = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom net import Net\n\n\n"
    "def main():\n    model = FSDP(Net())\n    {}\n"
)
SUMMONED = "with FSDP.summon_full_params(model):\n        model.draw()"


@pytest.mark.parametrize(
    ("draws", "asks", "is_said"),
    [
        ("nn.init.normal_(self.head.weight)", "model.draw()", True),
        ("self.head.weight.data.normal_()", "model.draw()", True),
        ("nn.init.trunc_normal_(self.scale)", "model.draw()", True),
        ("nn.init.normal_(self.noise)", "model.draw()", False),
        ("nn.init.normal_(self.head.weight)", "model.other()", False),
        ("nn.init.normal_(self.head.weight)", "Net().draw()", False),
        ("nn.init.normal_(self.head.weight)", SUMMONED, False),
        ("nn.init.zeros_(self.head.weight)", "model.draw()", False),
    ],
)
def test_a_method_of_a_sharded_model_draws_for_its_own(
    tmp_path: Path, draws: str, asks: str, *, is_said: bool
) -> None:
    (tmp_path / "net.py").write_text(NET.format(draws))
    (tmp_path / "train.py").write_text(SHARDS.format(asks))
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path == str(tmp_path / "net.py")}
    assert ("FM336" in found) is is_said
    one = SHARDS.format(asks).replace("from net import Net\n", "") + NET.format(draws)
    assert ("FM336" in {use.code for use in scan_source(one)}) is is_said


RESET = """\
def init_normal(module, std):
    torch.nn.init.{}(module.weight, std)

class Block(torch.nn.Module):
    def reset_parameters(self):
        init_normal(self.up, 0.2)

class Net(torch.nn.Module):
    def reset_parameters(self):
        for block in self.blocks:
            block.reset_parameters()

net = Net()
{}
"""
WRAP = "model = FSDP(net, use_orig_params=True)"


@pytest.mark.parametrize(
    ("draws", "lines", "is_said"),
    [
        ("trunc_normal_", [WRAP, "net.reset_parameters()"], True),
        ("trunc_normal_", [WRAP, "model.reset_parameters()"], True),
        ("trunc_normal_", [WRAP, "model.module.blocks[0].reset_parameters()"], True),
        ("trunc_normal_", [WRAP, "for m in model.modules():", "    m.reset_parameters()"], True),
        ("trunc_normal_", ["net.reset_parameters()", WRAP], False),
        ("trunc_normal_", [WRAP, "other.reset_parameters()"], False),
        ("trunc_normal_", [WRAP, "with FSDP.summon_full_params(model): net.reset_parameters()"], False),
        ("constant_", [WRAP, "net.reset_parameters()"], False),
    ],
)
def test_a_model_that_draws_its_weights_anew(draws: str, lines: list[str], *, is_said: bool) -> None:
    """Its method drew other weights without a word, where the same in a loop over parameters was said."""
    found = uses(RESET.format(draws, "\n".join(lines)))
    assert any(use.code == "FM336" and "draws weights anew" in use.becomes for use in found) is is_said


@pytest.mark.parametrize(
    ("asked", "is_said"), [("Embedding", True), ("Linear", False), ("LayerNorm", False), ("", True)]
)
def test_layers_of_torch_that_draw_their_weights_anew(asked: str, *, is_said: bool) -> None:
    test = f"isinstance(m, torch.nn.{asked})" if asked else "hasattr(m, 'reset_parameters')"
    found = codes(f"{WRAP}\nfor m in model.modules():\n    if {test}: m.reset_parameters()\n")
    assert (("FM336", "commented") in found) is is_said


def test_a_model_of_another_file_that_draws_its_weights_anew(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def reset_parameters(self):\n"
        "        torch.nn.init.normal_(self.up.weight)\n"
    )
    (tmp_path / "train.py").write_text(
        f"from net import Net\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        f"net = Net()\n{WRAP}\nnet.reset_parameters()\n"
    )
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM336"]
    assert ("train.py", 5) in {(use.path.rpartition("/")[2], use.line) for use in found}
