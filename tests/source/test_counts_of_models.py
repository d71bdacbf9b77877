"""Counts of a sharded model's parameters that meet the number of ranks, in a function and around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import codes, turned, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_SUM = "sum(p.numel() for p in model.parameters())"
_HELPER = "def size(model, state=None):\n    {}\n    return total\n\n"
_USED = "model = FSDP(net)\nprint(size(model))\n"
_COUNT = f"def count(model):\n    return {_SUM}\n\n"


@pytest.mark.parametrize(
    ("lines", "is_said"),
    [
        (f"total: int = {_SUM}\n    total *= state.world_size", True),
        (f"total: int = {_SUM}\n    total = total * dist.get_world_size()", True),
        (f"total = {_SUM}\n    total *= state.replica_local_size", True),
        (f"total = {_SUM}\n    total *= mesh.size()", True),
        (f"total = {_SUM}\n    ranks = dist.get_world_size()\n    total = total * ranks", True),
        (f"total: int = {_SUM}", False),
        (f"total: int = {_SUM}\n    total *= state.bits", False),
        (f"total = {_SUM}\n    ranks = len(names)\n    total = total * ranks_of", False),
        (f"total = {_SUM}\n    total //= state.world_size", False),
    ],
)
def test_in_the_function_that_counts(lines: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(f"{_HELPER.format(lines)}{_USED}")) is is_said
    plain = f"{_HELPER.format(lines)}print(size(net))\nmodel = FSDP(net)\n"
    assert ("FM423", "commented") not in codes(plain)


@pytest.mark.parametrize(
    ("used", "is_said"),
    [
        ("n = count(model) * dist.get_world_size()\n", True),
        ("n = count(model)\nn *= world_size\n", True),
        ("n: int = count(model)\nprint(n * state.num_ranks)\n", True),
        ("n = torch.tensor(count(model))\ndist.all_reduce(n)\n", True),
        ("n = count(model) * 2\n", False),
        ("print(count(model), world_size)\n", False),
        ("n = count(other) * world_size\n", False),
        ("n = counted(model) * world_size\n", False),
    ],
)
def test_around_a_function_that_counts(tmp_path: Path, used: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(f"{_COUNT}model = FSDP(net)\n{used}")) is is_said
    (tmp_path / "sizes.py").write_text(_COUNT)
    (tmp_path / "main.py").write_text(f"{FSDP}from sizes import count\nmodel = FSDP(net)\n{used}")
    assert ("FM423" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


def test_one_ranks_part_is_counted_as_before() -> None:
    local = _COUNT.replace("p.numel()", "p.to_local().numel()")
    assert ("FM423", "commented") not in codes(f"{local}model = FSDP(net)\nn = count(model) * world_size\n")


SUMMED = [
    (f"n = torch.tensor({_SUM})\ndist.all_reduce(n)", True),
    (f"n = {_SUM}\nt = torch.tensor(n).cuda()\ndist.all_reduce(t)", True),
    (f"n = {_SUM}\nn = torch.tensor([n])\ndist.all_reduce(n, op=dist.ReduceOp.SUM)", True),
    (
        "n = 0\nfor p in model.parameters():\n    n += p.numel()\nt = torch.tensor(n)\ndist.all_reduce(t)",
        True,
    ),
    (f"n = torch.tensor({_SUM})\nn = accelerator.reduce(n, 'sum')", True),
    (f"n = accelerator.reduce(torch.tensor({_SUM}))", True),
    (f"n = {_SUM}\nprint(n)", False),
    (f"n = {_SUM}\ndist.all_reduce(loss)\nprint(n)", False),
    (f"n = torch.tensor({_SUM})\ndist.all_reduce(n, op=dist.ReduceOp.MAX)", False),
    (f"n = torch.tensor({_SUM})\ndist.all_reduce(n, group=mpu.get_pipeline_model_parallel_group())", False),
    (f"n = torch.tensor({_SUM})\nn = functools.reduce(add, [n])", False),
]


@pytest.mark.parametrize(("body", "is_said"), SUMMED)
def test_a_count_that_is_summed_over_the_ranks(tmp_path: Path, body: str, is_said: bool) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    imports = f"import functools\n\nimport torch\nimport torch.distributed as dist\n{FSDP}"
    helper = f"{imports}\n\ndef count(model):\n{lines}"
    calls = "\n\ndef main(net):\n    model = FSDP(net)\n    {}\n"
    for call, code in (("count(model)", "FM423"), ("return model", "FM450")):
        (tmp_path / "a.py").write_text(helper + calls.format(call))
        assert (code in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


_FRAMEWORK = """\
import torch.distributed as dist
from functools import reduce
from accelerate import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
"""


@pytest.mark.parametrize("made", ["FSDP(net)", "accelerator.prepare(net)"])
@pytest.mark.parametrize(
    ("used", "is_said"),
    [
        (f"n = {_SUM}\nprint(accelerator.gather(torch.tensor(n)).sum())\n", True),
        (f"print(accelerator.reduce(torch.tensor({_SUM})))\n", True),
        (f"n = torch.tensor({_SUM})\ndist.all_reduce(n)\n", True),
        (f"n = torch.tensor({_SUM})\ndist.reduce(n, 0)\n", True),
        (f"n = {_SUM}\nevery = [None] * 4\ndist.all_gather_object(every, n)\n", True),
        (f"n = {_SUM}\nprint(n)\naccelerator.gather(loss)\n", False),
        (f"n = {_SUM}\nx = torch.gather(scores, 0, torch.tensor(n))\n", False),
        (f"n = {_SUM}\nx = scores.gather(0, n)\n", False),
        (f"n = {_SUM}\nx = reduce(add, [n, 1])\n", False),
    ],
)
def test_what_brings_the_ranks_counts_together(made: str, used: str, *, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(f"{_FRAMEWORK}model = {made}\n{used}")) is is_said


ALONE = "m = FSDP(net)\nparams = [q for q in m.parameters() if q.requires_grad]\n"


@pytest.mark.parametrize(
    "count",
    [
        "local = sum(q.numel() for q in params)\nprint('local', local)\n",
        "print(f'parameters (local) {sum(q.numel() for q in params)}')\n",
        "n = sum(p.numel() for p in m.parameters())\n",
        "n = sum(p.nelement() for _, p in m.named_parameters() if p.requires_grad)\n",
        "n = 0\nfor q in params:\n    n += q.numel()\n",
    ],
)
def test_a_count_that_nothing_else_is_said_of_is_kept_with_a_note(count: str) -> None:
    found = [(use.code, use.action) for use in uses(f"{ALONE}{count}") if "numel() counts" in use.becomes]
    assert found == [("FM334", "kept")]
    assert "numel() counts" not in turned(f"{ALONE}{count}")


@pytest.mark.parametrize(
    "count",
    [
        "n = sum(q.numel() for q in batch)\n",
        "if params[0].numel() == 0:\n    pass\n",
        "with FSDP.summon_full_params(m):\n    n = sum(p.numel() for p in m.parameters())\n",
        "n = sum(p.to_local().numel() for p in m.parameters())\n",
        "n = sum(p.numel() for p in m.state_dict().values())\n",
        "x = world_size * sum(q.numel() for q in params)\n",
    ],
)
def test_a_count_that_is_as_before_or_said_otherwise_is_not(count: str) -> None:
    found = [(use.code, use.action) for use in uses(f"{ALONE}{count}") if "stays: numel()" in use.becomes]
    assert found == []
    before = f"n = sum(p.numel() for p in net.parameters())\n{ALONE}"
    assert [use for use in uses(before) if "numel()" in use.becomes] == []
