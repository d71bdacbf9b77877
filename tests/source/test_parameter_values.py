"""Lists of parameters and gradients, where functions are given them and give them back."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

GIVEN = """\
def join(tensors):
    return torch.cat([t.view(-1) for t in tensors])

def spread(tensors):
    return max(t.max() for t in tensors)

def first(tensors):
    return torch.median(tensors[0])

def signs(tensors):
    return [t.sign() for t in tensors]

def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()
    return tensor

def grads_of(model):
    return [p.grad for p in model.parameters()]

def run(net, others):
    m = FSDP(net)
    grads = [p.grad for p in m.parameters()]
    {}
"""


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("x = join(grads)", True),
        ("x = spread(grads)", True),
        ("x = first(grads)", True),
        ("x = join([p.grad for p in m.parameters()])", True),
        ("x = torch.stack(signs(grads))", True),
        ("x = torch.stack(grads_of(m))", True),
        ("for g in grads_of(m):\n        x = g.norm()", True),
        ("x = join(others)", False),
        ("x = torch.stack(signs(others)), signs(grads)", False),
        ("x = whole(grads[0]).norm()", False),
        ("x = torch.stack(grads_of(others))", False),
        ("x = join([m.head.weight])", True),
        ("with FSDP.summon_full_params(m):\n        x = join([m.head.weight])", False),
    ],
)
def test_lists_are_followed_into_functions_and_back(use: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(GIVEN.format(use))) is is_said
