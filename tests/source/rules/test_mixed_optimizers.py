"""An optimizer that is given sharded parameters and plain ones in one list."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, codes


pytestmark = pytest.mark.any_torch


HEADER = f"from itertools import chain\n{IMPORTS}"


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("chain(head.parameters(), model.parameters())", True),
        ("list(head.parameters()) + list(model.parameters())", True),
        ("[*head.parameters(), *model.parameters()]", True),
        ("chain(head.parameters(), model.parameters()), foreach=False", False),
        ("[{'params': head.parameters()}, {'params': model.parameters()}]", False),
        ("chain(model.head.parameters(), model.parameters())", False),
        ("model.parameters()", False),
        ("chain(head.parameters(), net2.parameters())", False),
    ],
)
def test_one_list_of_both_kinds_is_said(given: str, is_said: bool) -> None:
    body = f"model = FSDP(net)\noptimizer = torch.optim.AdamW({given})\n"
    assert (("FM447", "commented") in codes(body, HEADER)) is is_said


def test_a_list_that_has_a_name_is_said_too() -> None:
    body = (
        "model = FSDP(net)\nevery = chain(head.parameters(), model.parameters())\n"
        "optimizer = torch.optim.SGD(every, lr=0.1)\n"
    )
    assert ("FM447", "commented") in codes(body, HEADER)
