"""Children of a sharded model: FSDP1's wrapper had one."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, MODEL, assert_commented, codes


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "model = accelerator.prepare(net)\n"
)


@pytest.mark.parametrize(
    "use",
    [
        "first = list(model.children())[0]\n",
        "inner = next(model.children())\n",
        "n = len(list(model.children()))\n",
        "head = dict(model.named_children())['head']\n",
        "for child in model.children():\n    parts.append(child)\n",
        "for name, child in model.named_children():\n    if name != 'head':\n        child.eval()\n",
        "linear = [c for c in model.children() if isinstance(c, Linear)]\n",
    ],
)
def test_what_depends_on_how_many_there_are(use: str) -> None:
    assert_commented(use, "FM335")
    assert ("FM335", "commented") in codes(ACCELERATE + use)


@pytest.mark.parametrize(
    "use",
    [
        f"{MODEL}for child in model.children():\n    child.train()\n    child.to(device)\n",
        f"{MODEL}n = sum(p.numel() for c in model.children() for p in c.parameters())\n",
        f"{MODEL}for _, child in model.named_children():\n    child.requires_grad_(False)\n",
        f"{MODEL}first = list(model.encoder.children())[0]\n",
        f"{MODEL}first = list(model.module.children())[0]\n",
        f"{MODEL}first = list(net.children())[0]\n",
        f"{MODEL}first = list(model.modules())[0]\n",
        f"first = list(net.children())[0]\n{MODEL}",
        "for n, child in net.named_children():\n    setattr(net, n, FSDP(child))\nx = [*net.children()]\n",
        "def go(m):\n    for c in m.children():\n        go(c)\n    print(m)\nmodel = FSDP(net)\ngo(model)\n",
        f"{ACCELERATE}inner = accelerator.unwrap_model(model)\nfirst = list(inner.children())[0]\n",
    ],
)
def test_what_does_not_is_left_alone(use: str) -> None:
    assert ("FM335", "commented") not in codes(use, IMPORTS)


PARTS = "net.body = FSDP(net.body)\n"
LOOP = "for i, block in enumerate(net.layers):\n    net.layers[i] = FSDP(block)\n"
FIRST = "first = list(net.children())[0]\n"
OWN = (
    "class Runner:\n    def __init__(self, net):\n        self.net = net\n"
    "        self.net.body = FSDP(self.net.body)\n{}"
    "    def first(self):\n        return next(self.net.children())\n"
)


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        (f"{PARTS}net = FSDP(net)\n{FIRST}", True),
        (f"{LOOP}net = FSDP(net)\n{FIRST}", True),
        (OWN.format("        self.net = FSDP(self.net)\n"), True),
        (f"{PARTS}if whole:\n    net = FSDP(net)\n{FIRST}", True),
        # It is an object of its own class: not wrapped itself, or not yet.
        (f"{PARTS}{FIRST}", False),
        (f"{LOOP}{FIRST}", False),
        (f"{PARTS}{FIRST}net = FSDP(net)\n", False),
        (OWN.format(""), False),
    ],
)
def test_a_model_with_wrapped_parts_is_a_wrapper_once_it_is_wrapped_itself(
    body: str, *, is_told: bool
) -> None:
    assert (("FM335", "commented") in codes(body, IMPORTS)) is is_told
