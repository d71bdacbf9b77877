"""Lists of parameters from before Accelerate's ``prepare``, and norms of a part of a model."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import comments


pytestmark = pytest.mark.any_torch


FSDP1 = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    'plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")\n'
    "accelerator = Accelerator(fsdp_plugin=plugin)\n"
)
PREPARE = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
CLIP = "accelerator.clip_grad_norm_(trained, 1.0)\n"
FILTERED = "trained = [p for p in model.parameters() if p.requires_grad]\n"


@pytest.mark.parametrize(
    ("made", "used", "is_said"),
    [
        (FILTERED, CLIP, True),
        (
            "model = Pair(unet, encoder)\ntrained = list(unet.parameters()) + list(encoder.parameters())\n",
            CLIP,
            True,
        ),
        ("trained = list(filter(lambda p: p.requires_grad, model.parameters()))\n", CLIP, True),
        ("trained = dict(model.named_parameters())\n", "trained['a'].grad.zero_()\n", True),
        (FILTERED, "for p in trained:\n    p.register_hook(check)\n", True),
        (FILTERED, "print(sum(p.numel() for p in trained))\n", False),
        (FILTERED, f"{FILTERED}{CLIP}", False),
        (FILTERED, "optimizer.step()\n", False),
        ("trained = build()\n", CLIP, False),
    ],
)
def test_a_list_from_before_prepare_gets_a_comment(made: str, used: str, *, is_said: bool) -> None:
    body = f"{made}optimizer = torch.optim.AdamW(trained)\n{PREPARE}{used}"
    said = comments(body, FSDP1)
    assert ("FM446" in said) is is_said
    plain = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    assert "FM446" not in {use.code for use in scan_source(plain + body)}


def test_a_list_that_an_object_keeps_gets_a_comment() -> None:
    body = (
        "class Run:\n    def __init__(self, model, accelerator):\n"
        "        self.trained = [p for p in model.parameters() if p.requires_grad]\n"
        "        self.optimizer = torch.optim.AdamW(self.trained)\n"
        "        self.model, self.optimizer = accelerator.prepare(model, self.optimizer)\n"
        "    def step(self):\n        self.accelerator.clip_grad_norm_(self.trained, 1.0)\n"
    )
    assert "FM446" in comments(body, FSDP1)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("model.head.parameters()", True),
        ("model.layers[0].parameters()", True),
        ("accelerator.unwrap_model(model).head.parameters()", True),
        ("[p for p in model.parameters() if p.requires_grad]", True),
        ("filter(lambda p: p.requires_grad, model.parameters())", True),
        ("model.parameters()", False),
        ("model.module.parameters()", False),
        ("accelerator.unwrap_model(model).parameters()", False),
        ("[p for p in model.parameters()]", False),
        ("other.parameters()", False),
    ],
)
def test_the_norm_of_a_part_gets_a_comment(given: str, *, is_said: bool) -> None:
    body = f"{PREPARE}accelerator.clip_grad_norm_({given}, 1.0)\n"
    assert ("FM326" in comments(body, FSDP1)) is is_said
    named = f"{PREPARE}chosen = {given}\naccelerator.clip_grad_norm_(chosen, 1.0)\n"
    assert ("FM326" in comments(named, FSDP1)) is is_said
