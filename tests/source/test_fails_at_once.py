"""What torch refuses before the first step is done stops no run."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, codes


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
REDUCES = "for p in model.parameters(): dist.all_reduce(p.grad)"
TRIES = "try:\n            pass\n        except OSError:\n            {}\n        finally:\n            {}"
ELSE = (
    "for p in model.parameters():\n            if p.grad is not None:\n                pass\n"
    "            else:\n                dist.all_reduce(p.grad)"
)
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
        ({"step": "average(model)", "within": "if p.grad is None: "}, "FM423"),
        ({"step": "average(model)", "within": "if not p.requires_grad: "}, "FM423"),
        ({"step": "average(model)", "within": "if p.requires_grad and p.grad is not None: "}, "FM336"),
        ({"step": "average(model)", "within": "if p.grad is not None and args.both: "}, "FM423"),
        ({"step": f"with contextlib.suppress(RuntimeError):\n            {REDUCES}"}, "FM423"),
        ({"step": f"with torch.no_grad():\n            {REDUCES}"}, "FM336"),
        ({"step": TRIES.format(REDUCES, "pass")}, "FM423"),
        ({"step": TRIES.format("pass", REDUCES)}, "FM336"),
        ({"step": f"match args.kind:\n            case 'all':\n                {REDUCES}"}, "FM423"),
        ({"step": ELSE}, "FM423"),
    ],
)
def test_what_is_refused_in_the_first_step_stops_no_run(places: dict[str, str], code: str) -> None:
    given = {"above": "pass", "step": "pass", "below": "pass", "within": ""} | places
    found = dict(codes(STEP.format(**given), HEADER))
    assert found.keys() & {"FM336", "FM423"} == {code}


ROUND = """\
def main(net, batch, batches):
    model = FSDP(net)
    {}
def back(loss):
    loss.backward()
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"model(batch).sum().backward()\n    {REDUCES}", "FM336"),
        (f"for batch in batches:\n        self.manual_backward(model(batch))\n        {REDUCES}", "FM336"),
        (f"for batch in batches:\n        back(model(batch))\n        {REDUCES}", "FM336"),
        (f"for batch in batches:\n        back(model(batch))\n    {REDUCES}", "FM423"),
        # Nothing tells when that is run.
        (f"{REDUCES}\n    def later():\n        model(batch).backward()", "FM423"),
    ],
)
def test_what_runs_the_backward_is_found(body: str, code: str) -> None:
    found = dict(codes(ROUND.format(body), HEADER))
    assert found.keys() & {"FM336", "FM423"} == {code}
