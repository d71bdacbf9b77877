"""Runs that part where a gradient is rounding: FSDP1's own run, rounded otherwise, says if that is all."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.cli import main
from fsdp_migrate.parity.enlarging import not_shown, round_otherwise
from fsdp_migrate.parity.report import Difference
from fsdp_migrate.parity.script_report import Checkpoints, ScriptReport, cause, verdict
from fsdp_migrate.parity.tensors import find_gap


if TYPE_CHECKING:
    from pathlib import Path


# The key's bias has no part in what attention gives: its gradient is rounding, and Adam steps by it.
# `small` has a gradient of its own, which is as small beside the others.
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from fsdp_migrate.runtime import end_process_group
HEAD
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))
        self.small = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        scores = (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1)
        wanted = torch.arange(1.0, 4.0)
        return (scores @ self.value(x)).square().mean() + 1e-9 * TIMES * (self.small * wanted).sum()

model = Attention()
SHARD
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(step))) * FACTOR
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
STATE
moments = optimizer.state_dict()["state"][0]
torch.save({"model": state, "optimizer": moments}, os.path.join(sys.argv[1], "a.pt"))
end_process_group()
"""
FSDP1 = {
    "HEAD": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType",
    "SHARD": "model = FSDP(model, use_orig_params=True, device_id=torch.device('cpu'))",
    "STATE": "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT): state = model.state_dict()",
}
FSDP2 = {
    "HEAD": "from fsdp_migrate import prepare_fully_shard\nfrom fsdp_migrate.runtime import full_state_dict",
    "SHARD": "model = prepare_fully_shard(model, {'use_orig_params': True})",
    "STATE": "state = full_state_dict(model)['model']",
}


def compared(folder: Path, *, factor: str = "1", times: str = "1") -> list[str]:
    """Write both scripts, of which that under FSDP2 has factors, and return what compares them."""
    for name, parts in (("before", FSDP1), ("after", FSDP2)):
        own = {"FACTOR": factor, "TIMES": times} if name == "after" else {"FACTOR": "1", "TIMES": "1"}
        text = SCRIPT
        for word, code in {**parts, **own}.items():
            text = text.replace(word, code)
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(text)
    return ["compare", str(folder / "before"), str(folder / "after"), "--", "python", "train.py", "OUT"]


@pytest.mark.slow
def test_a_step_that_rounding_makes_is_alike_where_fsdp1s_own_run_makes_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a right migration the last line was "Different", below "cause: rounding", and the exit code 1."""
    assert main(compared(tmp_path, factor="(1 + 2**-22)")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("By rounding the runs part in step 1, at gradient key.bias")
    assert "cause: rounding. The gradients of this step are the same but for rounding" in said
    assert re.search(r"a\.pt: differs: .*\. FSDP1's own run, rounded otherwise, differs by as much", said)
    end = (
        r"Alike: of 63 tensors of 4 steps \d+ differ by rounding alone, and \d+ by what the optimizer makes "
        r"of it, as much as in FSDP1's own run\."
    )
    assert re.search(f"{end}$", said)
    # As near to 0, and of either sign, numbers that can be represented say nothing.
    assert not re.search(r"\d,\d{3},\d{3},\d{3} ulps", said)


@pytest.mark.slow
def test_a_small_gradient_that_is_another_one_is_no_rounding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the largest it is as small as rounding, and was called that."""
    assert main(compared(tmp_path, times="3")) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("The runs part in step 1, at gradient small")
    assert "cause: not known. What differs first is small beside the largest gradient" in said
    assert "does not part by as much at gradient small, step 1." in said
    assert said.endswith("Different: 8 of 63 tensors of 4 steps; the first is gradient small, step 1.")


def difference(one: torch.Tensor, other: torch.Tensor, step: int = 1, stage: Any = "gradient") -> Difference:
    gap = find_gap(one, other)
    assert gap is not None
    return Difference(step=step, stage=stage, name="a", module="", rank=0, gap=gap)


def test_what_the_own_run_shows_in_any_step_is_shown() -> None:
    one, noise = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1e-3])
    found = [difference(one, one + noise)]
    assert not_shown(found, [difference(one, one + noise / 8, step=3)]) == []
    for own in ([], [difference(one, one + noise / 64)], [difference(one, one + noise, stage="parameter")]):
        assert not_shown(found, own) == found
    rounding = difference(one, one * (1 + 2e-7))
    assert not_shown([rounding], []) == []
    for other in (torch.tensor([math.nan, 0.0]), torch.ones(3), torch.tensor([math.inf, 0.0])):
        odd = [difference(one, other)]
        assert not_shown(odd, [difference(one, one + noise)]) == odd


def test_gradients_are_rounded_alike_wherever_they_are_the_same() -> None:
    """Ranks with whole gradients stay the same, and the script's random numbers too."""
    grads: list[list[torch.Tensor]] = []
    for _ in range(2):
        params = [torch.nn.Parameter(torch.ones(64)) for _ in range(2)]
        unused = torch.nn.Parameter(torch.ones(2))
        for param in params:
            param.grad = torch.linspace(-1, 1, 64)
        before = torch.get_rng_state()
        round_otherwise(torch.optim.SGD([*params, unused]), 2)
        assert torch.equal(torch.get_rng_state(), before)
        assert unused.grad is None
        grads.append([param.grad for param in params if param.grad is not None])
    assert torch.equal(grads[0][0], grads[1][0])
    assert not torch.equal(grads[0][0], grads[0][1])
    gap = find_gap(torch.linspace(-1, 1, 64), grads[0][0])
    assert gap is not None
    assert 0 < (gap.epsilons or 0) <= 9


def test_what_could_not_be_shown_is_undecided() -> None:
    """The verdict says no more than the cause above it."""
    other = difference(torch.ones(2), torch.ones(2) * 1.5)
    common: dict[str, Any] = {"before": "a", "after": "b", "command": (), "steps_before": 2, "steps_after": 2}
    report = ScriptReport(**common, compared=4, differences=(other,), num_differences=1, is_enlarged=True)
    end = "1 of 4 tensors of 2 steps"
    assert not report.alike
    assert verdict(report) == (
        f"Undecided: {end} differ by more than rounding; the first is gradient a, step 1. It may be rounding "
        "that the optimizer enlarges."
    )
    assert cause(report).startswith("rounding, as it seems. ")
    refuted = replace(report, shown_by_rounding=False)
    assert verdict(refuted) == f"Different: {end}; the first is gradient a, step 1."
    assert cause(refuted).startswith("not known. ")
    shown = replace(report, shown_by_rounding=True, num_enlarged=1)
    assert shown.alike
    assert verdict(shown) == (
        "Alike: of 4 tensors of 2 steps 1 differ, by what the optimizer makes of rounding, as much as in "
        "FSDP1's own run."
    )
    assert cause(shown).startswith("rounding. ")
    # What was left is no part of that, but where it differs by no more either.
    for is_enlarged in (True, False):
        saved = Checkpoints(path="last", is_same=False, is_enlarged=is_enlarged)
        assert replace(shown, checkpoints=(saved,)).alike is is_enlarged
