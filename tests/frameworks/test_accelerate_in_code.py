"""What docs/frameworks.md shows for FSDP1's bits under Accelerate, run as it stands there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.frameworks import accelerate_bodies
from tests.ranks import ROOT, run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_the_example_has_the_losses_of_fsdp1(precision: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    [example] = re.findall(r"```python\n(import torch\nfrom accelerate\b.*?)```", page, re.DOTALL)
    # That they can be compared is the one thing added.
    before, backward, after = example.partition("    accelerator.backward(loss)\n")
    example = f"{before}    losses.append(loss.item())\n{backward}{after}"
    for found in run_ranks(accelerate_bodies.go_on, str(tmp_path / "old"), precision, example):
        assert found["example"] == found["fsdp1"]


def test_where_low_outputs_meet_float32_fsdp2_raises_and_float_helps() -> None:
    """FM354 names these, and says `.float()`."""
    for before, after in zip(
        *(run_ranks(accelerate_bodies.meet_float32, each) for each in (1, 2)), strict=True
    ):
        assert set(before.values()) == {""}
        assert {name for name, said in after.items() if not said} == {"float", "product"}


def test_fsdp2_looks_for_the_layers_in_every_model() -> None:
    """FM449 says so at the second, with the line that helps."""
    for before, after in zip(
        *(run_ranks(accelerate_bodies.prepare_two, each) for each in (1, 2)), strict=True
    ):
        assert set(before.values()) == {""}
        assert "Could not find the transformer layer class Block" in after["as it is"]
        assert after["named anew"] == ""


def test_fsdp2_takes_no_optimizer_that_holds_more_than_the_model() -> None:
    """FM449 says so."""
    for before, after in zip(*(run_ranks(accelerate_bodies.hold_more, each) for each in (1, 2)), strict=True):
        assert before == ""
        assert "couldn't be switched to its sharded version" in after
