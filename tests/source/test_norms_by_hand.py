"""A norm of gradients that a function makes by hand gets one advice, the one that works."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, uses


pytestmark = pytest.mark.any_torch

SUM = "total = sum((p.grad.detach().float() ** 2).sum() for p in model.parameters() if p.grad is not None)\n"
LOOP = (
    "total = torch.zeros(())\n    for p in model.parameters():\n        if p.grad is not None:\n"
    "            part = p.grad.norm(2)\n            total += part ** 2\n"
)
NORMS = (
    "total = torch.zeros(())\n    for p in model.parameters():\n        if p.grad is not None:\n"
    "            total += p.grad.norm(dtype=torch.float32)\n"
)
REDUCE = "    dist.all_reduce(total)\n"
ROOT = "    return total.sqrt().item()\n"
MEAN = "    return total.item()\n"


def said(body: str) -> list[tuple[str, str, bool]]:
    header = f"{IMPORTS}import torch\nimport torch.distributed as dist\n"
    code = f"def norm(model: FSDP):\n    {body}"
    lines = f"{header}{code}".splitlines()
    return [
        (use.code, lines[use.line - 1].strip(), "clip_grad_norm_(model, float('inf'))" in use.becomes)
        for use in uses(code, header)
        if use.rule == "dtensor"
    ]


@pytest.mark.parametrize("made", [SUM, LOOP])
def test_a_norm_by_hand_gets_one_advice(made: str) -> None:
    code = made + REDUCE + ROOT
    assert said(code) == [("FM423", "dist.all_reduce(total)", True)]
    assert [each[2] for each in said(code.replace("sqrt()", "pow(0.5)"))] == [True]


@pytest.mark.parametrize(
    ("more", "is_norm"),
    [
        ("total /= fs_init.get_model_parallel_world_size()", False),
        ("total = total + mp_norm_sq", False),
        ("dist.all_reduce(total, group=self.tp_group)", False),
        ("dist.all_reduce(total, group=tensor_parallel_group)", False),
        ("total /= 2", True),
        ("comp_size = 2", True),
    ],
)
def test_a_norm_over_ranks_of_model_parallelism_is_kept(more: str, *, is_norm: bool) -> None:
    """The runtime's norm is that of one shard group: replicated parameters drifted apart."""
    found = said(f"{LOOP}{REDUCE}    {more}\n{ROOT}")
    assert {advised for *_, advised in found} == {is_norm}


@pytest.mark.parametrize(
    ("squared", "is_norm"),
    [
        ("p.grad.norm()", False),
        ("p.grad.norm(**settings)", False),
        ("torch.linalg.vector_norm(p.grad, 2)", False),
        ("p.grad.norm() ** 2", True),
        ("p.grad.norm().pow(2)", True),
        ("p.grad.norm(norm_type) ** norm_type", True),
        ("torch.square(p.grad.norm())", True),
    ],
)
@pytest.mark.parametrize("root", ["** 0.5", "** (1 / 2)", "** .5"])
def test_a_sum_of_norms_that_are_not_squared_is_no_norm_of_all(
    squared: str, root: str, *, is_norm: bool
) -> None:
    """The norm of all was advised, twice that number: the run was clipped otherwise, without an error."""
    code = NORMS.replace("p.grad.norm(dtype=torch.float32)", squared)
    body = f"{code}{REDUCE}    return total.item() {root}\n"
    assert said(body) == [("FM423", "dist.all_reduce(total)", is_norm)]
    header = f"{IMPORTS}import torch\nimport torch.distributed as dist\n"
    found = [
        use.becomes for use in uses(f"def norm(model: FSDP):\n    {body}", header) if use.rule == "dtensor"
    ]
    assert ["p.grad.to_local().norm()" in each for each in found] == [not is_norm]


@pytest.mark.parametrize("made", [SUM, LOOP])
def test_what_is_no_norm_over_ranks_keeps_what_is_said_of_each_line(made: str) -> None:
    found = said(made + REDUCE + MEAN)
    assert len(found) > 1
    assert not any(each[2] for each in found)
    assert said(made + ROOT)
    assert not any(each[2] for each in said(made + ROOT))


def test_a_sum_of_what_gradients_hold_is_no_count_of_them() -> None:
    """It leaves out those that are none, and was said to be another number that is best left alone."""
    guarded = f"{SUM}    return total\n"
    assert len(said(guarded)) == 1
    assert len(said(guarded.replace(" if p.grad is not None", ""))) == 1
    assert len(said("return sum(p.grad is not None for p in model.parameters())\n")) == 1
    counted = said("return sum(p.grad.numel() for p in model.parameters() if p.grad is not None)\n")
    assert [each[0] for each in counted] == ["FM423", "FM334"]
