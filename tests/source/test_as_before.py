"""What a DTensor does as a plain tensor did is not said."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, uses


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import math\n\n"
MODEL = "m = FSDP(net)\n"
OWN = "class Own:\n    def __init__(self):\n        self.rate = "


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("w.data.zero_()", False),
        ("w.data.fill_(1.0)", False),
        ("w.data.normal_(mean=0.0, std=0.02)", False),
        ("w.data.mul_(1 - 0.5)", False),
        ("rate = 0.5\nw.data.mul_(rate)", False),
        ("w.grad.clamp_(-1, 1)", False),
        ("torch.nn.init.normal_(w.data, std=0.02)", False),
        ("x = w.data.dtype", False),
        ("w.data.mul_(math.sqrt(2.0))", False),
        ("w.data.mul_(float(scale))", False),
        ("def f(rate: float):\n    w.data.mul_(rate)", False),
        ("def f(rate=0.5):\n    w.data.mul_(rate)", False),
        (f"{OWN}0.5\n    def f(self):\n        w.data.mul_(self.rate)", False),
        ("w.grad.add_(w.data, alpha=0.1)", False),
        ("x = w.grad.shape == mask.shape and w.data.dim() > 1", False),
        ("w.data.mul_(0.5).add_(1)", False),
        ("w.data.divide_(2)", False),
        ("w.data.fmod_(2)", False),
        ("w.data.mul_(0.5).tril_()", True),
        ("x = w.data.mul_(0.5).add_(1)", True),
        ("w.data.mul_(0.5).add_(mask)", True),
        ("w.data.mul_(mask)", True),
        ("x = mask.mul_(w.data)", True),
        ("mask.mul_(w.data)", True),
        ("w.data.copy_(old)", True),
        ("w.data.tril_()", True),
        ("torch.nn.init.sparse_(w.data, 0.5)", True),
        ("x = w.data.zero_()", True),
        ("x = torch.nn.init.normal_(w.data)", True),
        ("w.data.mul_(mask * 2)", True),
        ("w.data.mul_(torch.sqrt(mask))", True),
        ("def f(rate):\n    w.data.mul_(rate)", True),
        ("def f(rate=None):\n    w.data.mul_(rate)", True),
        (f"{OWN}mask\n    def f(self):\n        w.data.mul_(self.rate)", True),
    ],
)
def test_what_a_dtensor_does_as_a_plain_tensor_did(use: str, is_said: bool) -> None:
    """Tried with torch 2.13 on two ranks. What a GPU's random state becomes is a rule of its own."""

    def is_found(body: str) -> bool:
        named = [each for each in uses(MODEL + body, HEADER) if each.rule != "random-numbers"]
        return any(each.code in {"FM336", "FM423"} for each in named)

    assert is_found(use.replace("w.", "m.head.weight.") + "\n") is is_said
    if "def " not in use:
        loop = "for n, layer in m.named_modules():\n    w = layer.weight\n    "
        assert is_found(loop + use.replace("\n", "\n    ") + "\n") is is_said
