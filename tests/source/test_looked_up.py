"""Parameters that are looked up by themselves among whole ones, or were taken before."""

from __future__ import annotations

import pytest

from tests.source.samples import found_comments


pytestmark = pytest.mark.any_torch

START = """\
m = FSDP(net, use_orig_params=True)
names = {p: n for n, p in m.named_parameters()}
taken = list(m.parameters())
seen = set()
with FSDP.summon_full_params(m):
    mine = {p: n for n, p in m.named_parameters()}
    new = list(m.parameters())
"""


@pytest.mark.parametrize(
    ("inner", "is_said"),
    [
        ("send(names[p], p.data)", True),
        ("x = names.get(p)", True),
        ("x = optimizer.state[p]", True),
        ("x = numbers[id(p)]", True),
        ("x = p in names", True),
        ("x = p is not other.weight", True),
        ("x = [names[q] for q in m.parameters()]", True),
        ("send(mine[p], p.data)", False),
        ("x = names['weight'], p is None", False),
        ("if id(p) in seen:\n            continue\n        seen.add(id(p))", False),
    ],
)
def test_a_parameter_as_a_key(inner: str, is_said: bool) -> None:
    """In the context parameters are other objects: under FSDP1's ``use_orig_params`` they were the same."""
    numbers = "numbers, other = {}, net\noptimizer = Adam(m.parameters())\n"
    body = f"{numbers}{START}    for p in m.parameters():\n        {inner}\n"
    assert (("FM313", 11) in found_comments(body)) is is_said


@pytest.mark.parametrize(
    ("loop", "is_said"),
    [
        ("for p in taken:\n        p.data.mul_(2)", True),
        ("for p in new:\n        p.data.mul_(2)", False),
        ("for group in o.param_groups:\n        for p in group['params']:\n            p.data.mul_(2)", True),
        ("for group in o.param_groups:\n        group['lr'] = 0.1", False),
    ],
)
def test_parameters_that_were_taken_outside(loop: str, is_said: bool) -> None:
    found = found_comments(f"o = Adam(net.parameters())\n{START}    {loop}\n")
    assert ("FM313" in {code for code, _ in found}) is is_said
