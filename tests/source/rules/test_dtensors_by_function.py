"""DTensors that functions and methods see: what they are given, give back, and ask of a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_source
from tests.source.samples import IMPORTS, codes, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
MODEL = "m = FSDP(net)\n"


def test_a_model_that_is_asked_for_its_class_may_be_one() -> None:
    body = (
        "def norms(model):\n"
        "    is_sharded = isinstance(model, FSDP)\n"
        "    return [p.grad.norm() for p in model.parameters()]\n"
    )
    assert ("FM423", "commented") in codes(body, HEADER)


HELPER = (
    "def is_fsdp(x):\n    return isinstance(x, FSDP) or any(isinstance(m, FSDP) for m in x.modules())\n\n\n"
)


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("is_fsdp(model)", True),
        ("any(isinstance(m, FSDP) for m in model.modules())", True),
        ("any(isinstance(m, FSDP) for m in other.modules())", False),
        ("isinstance(model, FSDP) or isinstance(model, Other)", False),
        ("not (isinstance(model, Other) and flag)", False),
    ],
)
def test_a_model_in_which_the_class_was_found(test: str, is_said: bool) -> None:
    body = f"{HELPER}def norm(model, dtype):\n    if {test}:\n        "
    body += "return torch.stack([p.grad.to(dtype).norm(2) for p in model.parameters()])\n"
    found = codes(body.replace("isinstance(model, FSDP) or", "f(model) or"), HEADER)
    assert (("FM423", "commented") in found) is is_said


def test_what_is_made_of_a_model_that_is_asked_for_its_class_may_be_one() -> None:
    body = (
        "def log(model):\n"
        "    is_sharded = isinstance(model, FSDP)\n"
        "    inner = model.module if hasattr(model, 'module') else model\n"
        "    if is_sharded:\n        whole = model.module\n    else:\n        whole = model\n"
        "    def norms(module):\n"
        "        return [torch.norm(p.grad) for p in module.parameters()]\n"
        "    return norms(whole)\n"
    )
    assert ("FM423", "commented") in codes(body)


METHODS = (
    "class Net(torch.nn.Module):\n"
    "    def follow(self, other):\n"
    "        for mine, new in zip(self.parameters(), other.parameters()):\n"
    "            mine.data = mine.data * 0.9 + new.data * 0.1\n"
    "    def count(self):\n"
    "        return [p.norm() for p in self.parameters()]\n"
)


def test_a_method_that_a_sharded_model_is_asked_for_sees_dtensors() -> None:
    lines = [use.line for use in uses(f"{METHODS}m = FSDP(Net())\nm.follow(x)\n") if use.code == "FM423"]
    assert lines == [IMPORTS.count("\n") + 4]


def test_and_so_does_one_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"import torch\n\n\n{METHODS}")
    (tmp_path / "main.py").write_text(f"{IMPORTS}from net import Net\n\nm = FSDP(Net())\nm.follow(x)\n")
    left = {file.path.rpartition("/")[2]: file.after for file in rewrite_paths([tmp_path]).changed}
    assert left["net.py"].count("# fsdp-migrate: FM423") == 1


GATHERED = """\
def clip(model, group):
    found = {}
    def gather(module):
        for n, p in module.named_parameters(recurse=False):
            found[id(p)] = p
    gather(model)
    squares = sum(p.grad.pow(2).sum() for p in found.values())
    total = squares + 0
    dist.all_reduce(total, group=group)


"""


def test_a_norm_of_parameters_that_were_gathered_by_hand() -> None:
    assert ("FM423", "commented") in codes(f"{GATHERED}{MODEL}clip(m, None)\n", HEADER)
    assert "FM423" not in dict(codes(f"{GATHERED}{MODEL}clip(other, None)\n", HEADER))
    plain = GATHERED.replace("p.grad.pow", "p.grad.to_local().pow")
    assert "FM423" not in dict(codes(f"{plain}{MODEL}clip(m, None)\n", HEADER))


RETURNED = """\
def local(model):
    total = 0.0
    for p in model.parameters():
        total += torch.linalg.vector_norm(p.grad) ** 2
    return loss, {given}
def whole(model):
    loss, norm = local(model)
    value = {value}.clone() ** 2
    dist.all_reduce(value)  # here
"""


@pytest.mark.parametrize(
    ("given", "value", "is_said"),
    [
        ("total ** 0.5", "norm", True),
        ("total ** 0.5", "loss", False),
        ("total.to_local()", "norm", False),
    ],
)
def test_a_norm_that_a_function_returns_and_its_caller_sums(given: str, value: str, *, is_said: bool) -> None:
    text = f"{HEADER}{RETURNED.format(given=given, value=value)}m = FSDP(net)\nwhole(m)\n"
    lines = text.splitlines()
    said = [lines[use.line - 1] for use in scan_source(text) if use.code == "FM423"]
    assert any(each.endswith("# here") for each in said) is is_said


NORM = "for p in m.parameters():\n    print(p.grad.norm())\n"
INDENTED = "".join(f"    {line}\n" for line in NORM.splitlines())
METHOD = f"class T:\n  def log(self):\n{INDENTED}  def run(self):\n    {{}}self.log()\n"


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        (NORM, False),
        (f"if dist.get_rank() == 0:\n{INDENTED}", True),
        (f"@rank_zero_only\ndef log():\n{INDENTED}", True),
        (METHOD.format("if self.is_logging_process: "), True),
        (METHOD.format(""), False),
        ("def run():\n    return 1\n" + METHOD.format("if rank == 0: ") + "    self.log()\n", False),
    ],
)
def test_one_rank_alone_is_told_not_to_gather(body: str, is_one: bool) -> None:
    said = [use for use in uses(MODEL + body, HEADER) if use.code in {"FM334", "FM423"}]
    assert said
    assert all(("One rank alone" in each.becomes) is is_one for each in said)
    # Of one rank that waits for the others nothing is only shown.
    assert not is_one or {use.code for use in said} == {"FM423"}


NORM = (
    "def norm(grads):\n    {}\n    return torch.stack([g.norm() for g in grads])\n"
    f"{MODEL}x = norm([p.grad for p in m.parameters()])\n"
)


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("pass", True),
        ("if isinstance(grads, torch.Tensor):\n        grads = [grads]", True),
        ("if one:\n        grads = [grads]\n    else:\n        grads = list(grads)", True),
        ("grads = grads if isinstance(grads, list) else [grads]", True),
        ("grads = [g for g in grads if g is not None]", True),
        ("grads = [g.detach() for g in grads]\n    grads = tuple(grads)", True),
        ("if one:\n        grads = [g.full_tensor() for g in grads]", False),
        ("if one:\n        grads = losses", False),
        ("grads = [len(g) for g in grads]", False),
    ],
)
def test_what_a_function_makes_a_list_of_first(made: str, *, is_said: bool) -> None:
    found = codes(NORM.format(made), HEADER)
    assert (("FM423", "commented") in found) is is_said


IN_BRANCHES = (
    f"{MODEL}kept = []\nfor p in m.parameters():\n    g = p.grad\n    {{}}\n    kept.append(g)\n"
    "x = torch.nn.utils.get_total_norm(kept)\n"
)


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        (
            "if not isinstance(g, DTensor) and mesh:\n        g = DTensor.from_local(g, mesh, [Replicate()])",
            True,
        ),
        ("if one:\n        g = g * 2", True),
        ("if g is None:\n        g = torch.zeros_like(p)", True),
        ("if isinstance(g, DTensor):\n        g = g.full_tensor()", False),
        ("if isinstance(g, DTensor):\n        g = whole(g)", False),
        ("if one:\n        g = gathered(g)", False),
        ("if one:\n        g, x = losses", False),
        ("g = len(g)", False),
    ],
)
def test_a_gradient_that_a_branch_changes_is_one(line: str, *, is_said: bool) -> None:
    """A norm of them went without a word, though it is of the whole now: beside DTensors of its own too."""
    assert (("FM423", "commented") in codes(IN_BRANCHES.format(line), HEADER)) is is_said


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("grads = [g for g in grads if g is not None]", True),
        ("grads = [g.full_tensor() for g in grads]", False),
        ("grads = [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]", False),
    ],
)
def test_a_list_of_gradients_that_a_branch_changes_is_one(line: str, *, is_said: bool) -> None:
    made = f"{MODEL}grads = [p.grad for p in m.parameters()]\nif one:\n    {line}\n"
    found = codes(f"{made}x = torch.nn.utils.get_total_norm(grads)\n", HEADER)
    assert (("FM423", "commented") in found) is is_said
