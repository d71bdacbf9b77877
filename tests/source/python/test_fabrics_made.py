"""Fabrics whose strategy is bound anew, and shards nothing, in each branch of a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAINER = """\
import lightning as L
from lightning.fabric.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy

CHOICES = ["ddp", "fsdp"]


class Trainer:
    def __init__(self, net, strategy="ddp", xpu=False):
        {chosen}
        self.fabric = {made}
        self.model = self.fabric.setup(net)

    def load(self, x):
        self.model.load_state_dict(x)
"""
MADE = "L.Fabric(strategy=strategy, devices=2)"
FIRST = "if xpu:\n            strategy = SingleDeviceStrategy('xpu')\n        "
DDP = "elif strategy == 'ddp':\n            strategy = DDPStrategy()\n        "
EACH = f"{FIRST}{DDP}else:\n            strategy = 'auto'"


def _codes(folder: Path, chosen: str, made: str = MADE) -> list[str]:
    (folder / "trainer.py").write_text(TRAINER.format(chosen=chosen, made=made))
    uses = scan_paths([folder]).uses
    return [each.code for each in uses if each.action in {"commented", "unclear"} and "load" in each.text]


@pytest.mark.parametrize(
    "chosen",
    [
        EACH,
        f"{EACH}\n        print(strategy)",
        "strategy = 'ddp' if xpu else DDPStrategy()",
        (
            f"{FIRST}else:\n            if net:\n                strategy = 'ddp'\n            else:\n"
            "                strategy = 'dp'"
        ),
    ],
)
def test_what_every_branch_binds_anew_shards_nothing(tmp_path: Path, chosen: str) -> None:
    assert _codes(tmp_path, chosen) == []


@pytest.mark.parametrize(
    "chosen",
    [
        "pass",
        f"{FIRST}{DDP.rstrip()}",
        f"{FIRST}{DDP}else:\n            pass",
        f"{FIRST}{DDP}else:\n            strategy = FSDPStrategy()",
        f"{FIRST}{DDP}else:\n            strategy = xpu",
        f"{EACH}\n        if net:\n            strategy = xpu",
        "strategy = 'auto'",
    ],
)
def test_what_may_be_handed_on_is_said(tmp_path: Path, chosen: str) -> None:
    assert _codes(tmp_path, chosen) == ["FM333"]


def test_another_fabric_of_that_name_counts_as_well(tmp_path: Path) -> None:
    again = "    def again(self, strategy):\n        self.fabric = L.Fabric(strategy=strategy)\n"
    (tmp_path / "trainer.py").write_text(TRAINER.format(chosen=EACH, made=MADE) + again)
    assert "FM333" in {each.code for each in scan_paths([tmp_path]).uses}
