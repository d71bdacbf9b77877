"""Parameters and gradients by themselves, in lists and dicts, that functions of other files are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FLAT = "import torch\n\ndef flat(grads):\n    return torch.cat([g.reshape(-1) for g in grads])\n"
"""A file of its own that says nothing of FSDP."""
GRADS = "[p.grad for p in model.parameters()]"
SURGERY = (
    "class Surgery:\n    def __init__(self, grads):\n        self.grads = grads\n\n"
    "    def flat(self):\n        return torch.cat([g.flatten() for g in self.grads])\n"
)


def said_of(folder: Path, helper: str, train: str) -> list[str]:
    """Return the codes of what is said of a helper's file, beside the one that shards and calls it."""
    (folder / "h.py").write_text(helper)
    body = train.replace("\n", "\n    ")
    (folder / "train.py").write_text(
        f"import torch\nimport h\n{FSDP}\ndef main(net, other, losses):\n    model = FSDP(net)\n    {body}\n"
    )
    report = scan_paths([folder])
    return [use.code for each in report.files if each.path.endswith("h.py") for use in each.uses]


@pytest.mark.parametrize(
    "train",
    [
        "h.flat([p.grad for p in model.parameters()])",
        "h.flat([p.grad.detach().clone() for p in model.parameters() if p.requires_grad])",
        "h.flat(tuple(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()))",
        "h.flat([p.data for n, p in model.named_parameters()])",
        "grads = []\nfor p in model.parameters():\n    grads.append(p.grad.clone())\nh.flat(grads)",
        "grads = {n: p.grad * 2 for n, p in model.named_parameters()}\nh.flat(grads.values())",
        "d = {}\nfor n, p in model.named_parameters():\n    d[n] = -p.grad\nh.flat(list(d.values()))",
        "tasks = [[p.grad for p in model.parameters()] for loss in losses]\nh.flat(tasks[0])",
        f"tasks = []\nfor loss in losses:\n    tasks.append({GRADS})\nfor grads in tasks:\n    h.flat(grads)",
        "h.flat([p.grad for p, loss in zip(model.parameters(), losses)])",
        "h.flat([p.grad for p in model.parameters()] + [p for p in model.parameters()])",
    ],
)
def test_a_list_that_is_given_to_another_file(train: str, tmp_path: Path) -> None:
    assert said_of(tmp_path, FLAT, train) == ["FM423"]


@pytest.mark.parametrize(
    "train",
    [
        "h.flat([p.grad.full_tensor() for p in model.parameters()])",
        "h.flat([p.grad.to_local() for p in model.parameters()])",
        "h.flat([p.grad for p in other.parameters()])",
        "h.flat([loss.reshape(1) for loss in losses])",
        "h.flat([p.grad.norm() for p in model.parameters()])",
        "h.flat([torch.tensor(p.numel()) for p in model.parameters()])",
        f"with FSDP.summon_full_params(model, with_grads=True):\n    h.flat({GRADS})",
        f"grads = {GRADS}\ngrads = [g.full_tensor() for g in grads]\nh.flat(grads)",
    ],
)
def test_what_no_dtensors_are_given_to(train: str, tmp_path: Path) -> None:
    assert said_of(tmp_path, FLAT, train) == []


@pytest.mark.parametrize(
    ("helper", "train", "is_said"),
    [
        ("def dot(a, b):\n    return torch.dot(a, b)\n", "h.dot(p.grad.flatten(), p.flatten())", True),
        ("def dot(a, b):\n    return torch.dot(a, b)\n", "h.dot(losses[0], losses[1])", False),
        ("def norm(grad):\n    return grad.pow(2).sum()\n", "h.norm(p.grad)", True),
        (
            "def norm(grad):\n    grad = grad.full_tensor()\n    return grad.pow(2).sum()\n",
            "h.norm(p.grad)",
            False,
        ),
        ("def half(grad):\n    return grad / 2\n", "h.half(p.grad)", False),
        (
            SURGERY,
            f"h.Surgery({GRADS}).flat()",
            True,
        ),
        (
            "def flat(tasks):\n    return [torch.stack(one) for one in tasks]\n",
            "h.flat([[p.grad for p in model.parameters()] for _ in losses])",
            True,
        ),
    ],
)
def test_one_that_is_given_to_another_file(helper: str, train: str, tmp_path: Path, *, is_said: bool) -> None:
    loop = f"for p in model.parameters():\n    {train}"
    assert said_of(tmp_path, f"import torch\n\n{helper}", loop) == (["FM423"] if is_said else [])


@pytest.mark.parametrize("given", ["model", "other"])
@pytest.mark.parametrize(
    "use",
    [
        "grads = h.grads_of({})\nx = torch.cat([g.reshape(-1) for g in grads])",
        "for g in h.grads_of({}):\n    x = torch.dot(g, g)",
        "x = torch.dot(h.grads_of({})[0], losses[0])",
    ],
)
def test_what_another_file_gives(use: str, given: str, tmp_path: Path) -> None:
    """A helper gives the gradients of what it is given: they are DTensors where that is sharded."""
    helper = "def grads_of(m):\n    return [p.grad for p in m.parameters()]\n"
    said_of(tmp_path, helper, f"h.grads_of(model)\n{use.format(given)}")
    uses = [use for each in scan_paths([tmp_path]).files for use in each.uses]
    found = any(use.text.startswith(("torch.cat", "torch.dot")) and use.code == "FM423" for use in uses)
    assert found is (given == "model")
