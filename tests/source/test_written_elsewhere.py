"""Weights that objects and functions of other files write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import IMPORTS


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

EVALUATE = "with torch.no_grad():\n    print(student(x))\n"
AVERAGE = """\
class Average:
    def __init__(self, model, n=0):
        self.model, self.n = model, n
        self.kept = [torch.zeros_like(p) for p in model.parameters()]

    @torch.no_grad()
    def swap(self):
        for a, p in zip(self.kept, self.model.parameters()):
            old = p.detach().clone()
            {}
            a.copy_(old)

    def __enter__(self):
        self.swap()

    def __exit__(self, *exc):
        self.swap()


@torch.no_grad()
def limit(c, net):
    for p in net.parameters():
        p.clamp_(-c, c)
"""
TRAINS = "student = FSDP(net)\nkept = Average({})\nstudent(x).mean().backward()\noptimizer.step()\n"
ENTERS = "with kept:\n    print(student(x))\n"


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize(
    ("writes", "given", "body", "line"),
    [
        ("p.copy_(a)", "student", f"{EVALUATE}{ENTERS}", "with kept:"),
        ("p.copy_(a)", "model=student", f"{EVALUATE}kept.swap()\n", "kept.swap()"),
        ("p.data.mul_(0).add_(a)", "student", f"{EVALUATE}{ENTERS}", "with kept:"),
        ("p.copy_(a)", "student", f"{EVALUATE}with Average(student):\n    pass\n", "with Average(student):"),
        # No forward without gradients lies between the step and it.
        ("p.copy_(a)", "student", ENTERS, ""),
        ("p.copy_(a)", "student", f"{EVALUATE}student(x).mean().backward()\n{ENTERS}", ""),
        # Another model, and what writes to its own copies alone.
        ("p.copy_(a)", "other", f"{EVALUATE}{ENTERS}", ""),
        ("pass", "student", f"{EVALUATE}{ENTERS}", ""),
        ("p.copy_(a)", "student", f"{EVALUATE}kept.n += 1\n", ""),
    ],
)
def test_an_object_that_writes_to_the_model_it_was_made_with(
    writes: str, given: str, body: str, line: str, tmp_path: Path, *, is_apart: bool
) -> None:
    """Such as weights that ``__enter__`` swaps, in the file beside the loop."""
    helper, code = AVERAGE.format(writes), f"{TRAINS.format(given)}{body}"
    (tmp_path / "average.py").write_text(f"import torch\n\n\n{helper if is_apart else ''}")
    own = "from average import Average\n" if is_apart else f"\n\n{helper}\n\n"
    path = tmp_path / "train.py"
    path.write_text(f"{IMPORTS}import torch\n{own}{code}")
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
    lines = path.read_text().splitlines()
    assert [(use.path, use.code, lines[use.line - 1]) for use in found] == (
        [(str(path), "FM451", line)] if line else []
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"{EVALUATE}limit(c, student)\n", "FM451"),
        (f"loss = student(x).mean()\nlimit(c, net=student)\nloss.backward()\n{EVALUATE}", "FM452"),
        (f"{EVALUATE}limit(c, other)\n", ""),
        (f"limit(c, student)\n{EVALUATE}", ""),
    ],
)
def test_a_function_of_another_file_that_writes(body: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "average.py").write_text(f"import torch\n\n\n{AVERAGE.format('pass')}")
    train = f"{IMPORTS}from average import Average, limit\n{TRAINS.format('student')}{body}"
    (tmp_path / "train.py").write_text(train)
    found = [use.code for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
    assert found == ([code] if code else [])


def test_an_object_in_a_source_for_a_newer_python() -> None:
    code = f"{AVERAGE.format('p.copy_(a)')}\n\n{TRAINS.format('student')}{EVALUATE}kept.swap()\n"
    uses = scan_source(f"{IMPORTS}import torch\n\ntype Size = int\n\n\n{code}")
    assert [use.code for use in uses if use.rule == "written-weights"] == ["FM451"]


LOOP = """\
def loss_of(model, x):
    return model(x).mean()


{}def evaluate(model, loader):
    model.eval()
    return sum(loss_of(model, x) for x in loader)


def main():
    model, ema = FSDP(net), FSDP(other)
    for x in loader:
        loss_of(model, x).backward()
        optimizer.step()
        update_ema(ema, model, 0.9)
        print(evaluate(model, loader), evaluate(ema, loader))
        {}
"""
UPDATE = """\
import torch


@torch.no_grad()
def update_ema(ema, model, decay):
    for pe, p in zip(ema.parameters(), model.parameters()):
        pe.mul_(decay).add_(p.data, alpha=1 - decay)
"""


@pytest.mark.parametrize(
    ("decorator", "more", "is_said"),
    [
        ("@torch.no_grad()\n", "", True),
        ("@torch.inference_mode()\n", "", True),
        # FSDP1 gathers anew after a forward with gradients and its backward.
        ("", "", False),
        ("@torch.no_grad()\n", "loss_of(ema, x).backward()", False),
    ],
)
def test_an_average_that_a_function_evaluates_by_another_one(
    decorator: str, more: str, tmp_path: Path, *, is_said: bool
) -> None:
    """The forward stands in a function with gradients, which one without calls, which the loop calls."""
    (tmp_path / "average.py").write_text(UPDATE)
    body = LOOP.format(decorator, more)
    (tmp_path / "train.py").write_text(f"{IMPORTS}import torch\nfrom average import update_ema\n\n\n{body}")
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
    assert [(use.code, "`ema`" in use.becomes) for use in found] == ([("FM451", True)] if is_said else [])


EVALUATION = """\
import torch


def loss_of(net, batch):
    return net(batch).mean()


{}def evaluate(net, loader):
    net.eval()
    return sum(loss_of(net, batch) for batch in loader)
"""
IMPORTED = """\
model, ema = FSDP(a), FSDP(b)
optimizer = torch.optim.SGD(model.parameters())
for step, x in enumerate(loader):
    model(x).mean().backward()
    optimizer.step()
    update_ema(ema, model, 0.9)
    print(evaluate({}))
"""


@pytest.mark.parametrize(
    ("decorator", "given", "is_said"),
    [
        ("@torch.no_grad()\n", "ema, loader", True),
        ("@torch.inference_mode()\n", "loader=loader, net=ema", True),
        # With gradients it is gathered anew by its backward; the other model is no average.
        ("", "ema, loader", False),
        ("@torch.no_grad()\n", "other, loader", False),
    ],
)
@pytest.mark.parametrize("imported", ["evaluate", "evaluate as check"])
def test_an_average_that_a_function_of_another_file_evaluates(
    imported: str, decorator: str, given: str, tmp_path: Path, *, is_said: bool
) -> None:
    """Nothing was said where the loop alone shows neither the forward nor the write."""
    (tmp_path / "average.py").write_text(UPDATE)
    (tmp_path / "evaluation.py").write_text(EVALUATION.format(decorator))
    body = IMPORTED.format(given)
    body = body.replace("evaluate(", "check(") if "check" in imported else body
    head = f"{IMPORTS}from average import update_ema\nfrom evaluation import {imported}\n\n"
    (tmp_path / "train.py").write_text(head + body)
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
    assert [(use.code, "`ema`" in use.becomes) for use in found] == ([("FM451", True)] if is_said else [])


def test_a_step_of_a_function_of_another_file_with_gradients_is_a_training(tmp_path: Path) -> None:
    """It lies between the evaluation and the write: FSDP1 has gathered anew."""
    (tmp_path / "average.py").write_text(UPDATE)
    more = "\n\ndef learn(net, batch):\n    net(batch).mean().backward()\n"
    (tmp_path / "evaluation.py").write_text(EVALUATION.format("@torch.no_grad()\n") + more)
    head = (
        f"{IMPORTS}import torch\nfrom average import update_ema\nfrom evaluation import evaluate, learn\n\n"
    )
    body = "model, ema = FSDP(a), FSDP(b)\nevaluate(ema, loader)\n{}update_ema(ema, model, 0.9)\n"
    for between, codes in (("", ["FM451"]), ("learn(ema, x)\n", [])):
        (tmp_path / "train.py").write_text(head + body.format(between))
        found = [use.code for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
        assert found == codes
