"""What torch refuses before the first step is done stops no run."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, codes


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
STEP = """\
def main(net, batches, args):
    model = FSDP(net)
    {above}
    for batch in batches:
        model(batch).sum().backward()
        {step}
    {below}
def average(model):
    for p in model.parameters():
        {within}dist.all_reduce(p.grad)
"""
REDUCES = "for p in model.parameters(): dist.all_reduce(p.grad)"


@pytest.mark.parametrize(
    ("places", "code"),
    [
        ({"step": "average(model)"}, "FM336"),
        ({"step": "average(model)", "within": "if p.grad is not None: "}, "FM336"),
        ({"step": "average(model)", "within": "if args.both: "}, "FM423"),
        ({"step": f"if args.both:\n            {REDUCES}"}, "FM423"),
        ({"step": f"try:\n            {REDUCES}\n        except Exception:\n            pass"}, "FM423"),
        ({"above": REDUCES}, "FM336"),
        ({"below": REDUCES}, "FM423"),
        ({"below": "average(model)"}, "FM423"),
    ],
)
def test_what_is_refused_in_the_first_step_stops_no_run(places: dict[str, str], code: str) -> None:
    given = {"above": "pass", "step": "pass", "below": "pass", "within": ""} | places
    found = dict(codes(STEP.format(**given), HEADER))
    assert found.keys() & {"FM336", "FM423"} == {code}
