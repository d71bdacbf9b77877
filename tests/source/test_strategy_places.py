"""What shuts Fabric's FSDP1 strategy out wherever a project makes it: one rank, and quantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

LOADS = """\
import torch


def load(fabric, model, path, devices, strict=True):
    if {}:
        fabric.load_raw(path, model, strict=strict)
    else:
        model.load_state_dict(torch.load(path), strict=strict)
"""
SETUP = """\
import lightning as L
from lightning.fabric.strategies import FSDPStrategy

from utils import load


def setup(devices):
    {}
    fabric = L.Fabric(devices=devices, strategy=strategy)
    fabric.launch(main)


def main(fabric):
    model = fabric.setup_module(GPT())
    load(fabric, model, "a.pth", 2)
"""
BELOW = "strategy = 'auto'\n    if devices > 1:\n        strategy = FSDPStrategy()"


def said(folder: Path, **files: str) -> set[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return {use.code for use in scan_paths([folder]).uses if use.action in {"commented", "unclear"}} - {
        "FM319"
    }


@pytest.mark.parametrize(
    ("test", "strategy", "is_said"),
    [
        ("fabric.world_size > 1", BELOW, False),
        ("not fabric.world_size == 1", BELOW, False),
        ("devices > 1", BELOW, False),
        ("fabric.world_size > 1", "strategy = FSDPStrategy() if devices > 1 else 'auto'", False),
        (
            "fabric.world_size > 1",
            f"if devices == 1:\n        return\n    {'strategy = FSDPStrategy()'}",
            False,
        ),
        # A strategy of FSDP may have one rank as well: the model is sharded then, too.
        ("fabric.world_size > 1", "strategy = FSDPStrategy()", True),
        ("fabric.world_size > 1", BELOW.replace("devices > 1", "devices > 0"), True),
        ("fabric.world_size > 1", f"{BELOW}\n    other = FSDPStrategy()", True),
        ("fabric.world_size > 2", BELOW, True),
        ("ready", BELOW, True),
    ],
)
def test_the_branch_of_one_rank_has_a_plain_model(
    tmp_path: Path, test: str, strategy: str, *, is_said: bool
) -> None:
    found = said(tmp_path, utils=LOADS.format(test), train=SETUP.format(strategy))
    assert found == ({"FM333"} if is_said else set())


MAKES = """\
def make(name, params):
    import bitsandbytes as bnb

    return bnb.optim.AdamW8bit(params)
"""
QUANTIZES = """\
import lightning as L
import torch
from lightning.fabric.plugins import BitsandbytesPrecision
from lightning.fabric.strategies import FSDPStrategy

from own import make


def setup(quantize, devices):
    strategy = "auto"
    if devices > 1:
        if quantize:
            {leaves}
        strategy = FSDPStrategy()
    fabric = L.Fabric(devices=devices, strategy=strategy)
    fabric.launch(main, quantize)


def main(fabric, quantize):
    model = fabric.setup_module(GPT())
    {makes}
    optimizer = fabric.setup_optimizers(optimizer)
"""
RAISES = "raise NotImplementedError"
BY_FUNCTION = """\
if {}:
        optimizer = make("adamw", model.parameters())
    else:
        optimizer = torch.optim.AdamW(model.parameters())"""
BY_NAME = """\
if {}:
        import bitsandbytes as bnb

        optimizer_cls = bnb.optim.PagedAdamW
    else:
        optimizer_cls = torch.optim.AdamW
    optimizer = optimizer_cls(model.parameters())"""


@pytest.mark.parametrize("makes", [BY_FUNCTION, BY_NAME])
@pytest.mark.parametrize(
    ("test", "leaves", "is_said"),
    [
        ('quantize and quantize.startswith("bnb.")', RAISES, False),
        ("isinstance(fabric.strategy.precision, BitsandbytesPrecision)", RAISES, False),
        ('quantize and quantize.startswith("bnb.")', "print('slow')", True),
        ("args.small", RAISES, True),
        ("not quantize", RAISES, True),
    ],
)
def test_an_optimizer_of_quantized_weights(
    tmp_path: Path, makes: str, test: str, leaves: str, *, is_said: bool
) -> None:
    train = QUANTIZES.format(leaves=leaves, makes=makes.format(test))
    assert ("FM445" in said(tmp_path, own=MAKES, train=train)) is is_said


def test_a_function_that_others_call_as_well_is_of_both(tmp_path: Path) -> None:
    train = QUANTIZES.format(leaves=RAISES, makes=BY_FUNCTION.format("quantize"))
    more = "    second = make('adamw', model.parameters())\n"
    assert "FM445" in said(tmp_path, own=MAKES, train=f"{train}{more}")
