"""Flat vectors that are cut by the sizes of a sharded model's parameters, and written back into it."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, MODEL, uses


pytestmark = pytest.mark.any_torch

IMPORTED = f"import math\n{IMPORTS}"
GIVEN = f"{MODEL}weights = list(model.parameters())\nput(weights, flat)\n"
PUT = "def put(ws, flat):\n    at = 0\n    for w in ws:\n        "
SUMMED = "        at += w.numel()\n"


def said(body: str) -> list[int]:
    found = uses(body, IMPORTED)
    return [
        use.line for use in found if use.code == "FM423" and "of the whole parameter now, and" in use.becomes
    ]


CUTS = [
    f"{PUT}n = w.numel()\n        w.grad = flat[at : at + n].view_as(w).clone()\n        at += n\n",
    f"{PUT}w.grad.copy_(flat[at : at + w.numel()].view(w.shape))\n{SUMMED}",
    f"{PUT}w.data.copy_(flat[at : at + w.nelement()].view(w.shape))\n        at += w.nelement()\n",
    f"{PUT}end = at + w.numel()\n        w.grad = flat[at:end].view_as(w)\n        at = end\n",
    f"{PUT}w.grad = flat[at : at + w.shape.numel()].view_as(w)\n        at += w.shape.numel()\n",
    f"{PUT}n = math.prod(w.size())\n        w.grad = flat[at : at + n].view_as(w)\n        at += n\n",
    (
        "def put(ws, flat):\n    for w, x in zip(ws, flat.split([w.numel() for w in ws])):\n"
        "        w.grad = x.view_as(w)\n"
    ),
    (
        "def put(ws, flat):\n    sizes = [w.numel() for w in ws]\n"
        "    for w, x in zip(ws, torch.split(flat, sizes)):\n        w.grad = x.view_as(w)\n"
    ),
]


@pytest.mark.parametrize("function", CUTS)
def test_each_is_said_once_in_a_loop(function: str) -> None:
    assert len(said(function + GIVEN)) == 1


@pytest.mark.parametrize("function", CUTS)
def test_those_of_a_plain_model_are_not(function: str) -> None:
    assert not said(f"{function}{MODEL}put(list(other.parameters()), flat)\n")


def test_sizes_that_an_object_keeps() -> None:
    kept = (
        "class Surgeon:\n    def __init__(self, net):\n"
        "        self.sizes = [w.numel() for w in net.parameters()]\n"
        "    def cut(self, flat):\n        return flat.split(self.sizes)\n\n"
    )
    assert len(said(f"{kept}{MODEL}Surgeon(model).cut(flat)\n")) == 1
    assert not said(f"{kept.replace('self.sizes)', 'self.others)')}{MODEL}Surgeon(model).cut(flat)\n")


@pytest.mark.parametrize(
    "body",
    [
        "n = sum(p.numel() for p in model.parameters())\nprint(n)\n",
        "for p in model.parameters():\n    p.flatten()[: p.numel() // 2].mul_(0.5)\n",
        "for p in model.parameters():\n    n = p.numel()\n    print(names[:k], n)\n",
        "with FSDP.summon_full_params(model):\n    for p in model.parameters():\n        a[: p.numel()]\n",
        (
            "def put(ws):\n    for w in ws:\n        w.grad.to_local().copy_(a[: w.to_local().numel()])\n\n"
            "put(list(model.parameters()))\n"
        ),
    ],
)
def test_what_cuts_nothing_or_a_parameter_itself_is_not(body: str) -> None:
    assert not said(MODEL + body)
