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
def test_one_list_of_both_kinds_is_named_and_needs_nothing(given: str, is_said: bool) -> None:
    body = f"model = FSDP(net)\noptimizer = torch.optim.AdamW({given})\n"
    assert (("FM447", "kept") in codes(body, HEADER)) is is_said


def test_a_list_that_has_a_name_is_named_too() -> None:
    body = (
        "model = FSDP(net)\nevery = chain(head.parameters(), model.parameters())\n"
        "optimizer = torch.optim.SGD(every, lr=0.1)\n"
    )
    assert ("FM447", "kept") in codes(body, HEADER)


@pytest.mark.parametrize(
    ("over", "is_said"),
    [
        ("chain(m.named_parameters(), m.named_buffers())", True),
        ("[*m.named_parameters(), *m.named_buffers()]", True),
        ("both(m)", True),
        ("m.named_parameters()", False),
        ("zip(m.named_parameters(), m.named_buffers())", False),
        ("chain(plain.named_parameters(), plain.named_buffers())", False),
    ],
)
def test_a_list_of_parameters_and_buffers_for_foreach(over: str, is_said: bool) -> None:
    both = "def both(m):\n    return chain(m.named_parameters(), m.named_buffers())\n\n\n"
    loop = f"for n, v in {over}:\n    values.append(v)\n"
    foreach = "torch._foreach_mul_(values, 0.9)\n"
    assert (("FM447", "commented") in codes(f"{both}m = FSDP(net)\n{loop}{foreach}", HEADER)) is is_said
    made = f"values = [v for n, v in {over}]\n"
    assert (("FM447", "commented") in codes(f"{both}m = FSDP(net)\n{made}{foreach}", HEADER)) is is_said
    assert ("FM447", "commented") not in codes(f"{both}m = FSDP(net)\n{loop}", HEADER)


AVERAGED = """\
from torch.optim.swa_utils import AveragedModel
class Averaged(AveragedModel):
    pass
model = FSDP(net)
average = {}
average.update_parameters(model)
"""
WITHIN = """\
from torch.optim.swa_utils import AveragedModel
class Averaged(AveragedModel):
    def __init__(self, model, use_buffers):
        super().__init__(model, use_buffers=use_buffers)
    def follow(self, model: FSDP):
        super().update_parameters(model)
"""


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (AVERAGED.format("Averaged(FSDP(other), use_buffers=True)"), True),
        (AVERAGED.format("AveragedModel(net, use_buffers=buffers)"), True),
        (AVERAGED.format("Averaged(FSDP(other), use_buffers=False)"), False),
        (AVERAGED.format("Averaged(FSDP(other))  # no use_buffers"), False),
        (AVERAGED.format("Averaged(net, use_buffers=True)").replace("= FSDP(net)", "= net"), False),
        (WITHIN, True),
        (WITHIN.replace("model: FSDP", "model"), False),
    ],
)
def test_an_average_of_parameters_and_buffers(body: str, *, is_said: bool) -> None:
    assert (("FM447", "commented") in codes(body, HEADER)) is is_said
