"""Helpers that only the plain model reaches, by the switch that decides on the sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


CODE = f"""\
import torch
{FSDP}from torch.distributed.fsdp import StateDictType


def make(net, sharded):
    if not sharded:
        return net
    return FSDP(net)


def save_fsdp(model, optimizer):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    torch.save(model.state_dict(), "a.pt")


def save_plain(model, optimizer):
    torch.save([model.state_dict(), optimizer.state_dict()], "b.pt")


def main(net, on, other):
    model = MAKE
    optimizer = torch.optim.AdamW(model.parameters())
    SAVE
"""
MADE = ("make(net, on)", "make(net, sharded=on)", "FSDP(net) if on else net")
BRANCHES = "if {}:\n        save_fsdp(model, optimizer)\n    else:\n        save_plain(model, optimizer)"
CHOSEN = "save = save_fsdp if {} else save_plain\n    save(model, optimizer)"
PICKED = "if {}:\n        save = save_fsdp\n    else:\n        save = save_plain\n    save(model, optimizer)"
LINE = CODE[: CODE.index("[model.state_dict()")].count("\n") + 1


def said(folder: Path, made: str, saved: str) -> set[str]:
    (folder / "train.py").write_text(CODE.replace("MAKE", made).replace("SAVE", saved))
    return {use.code for use in scan_paths([folder]).uses if use.line == LINE}


@pytest.mark.parametrize("saved", [BRANCHES, CHOSEN, PICKED])
@pytest.mark.parametrize("made", MADE)
def test_what_only_the_plain_model_reaches_is_left(tmp_path: Path, made: str, saved: str) -> None:
    assert said(tmp_path, made, saved.format("on")) == set()


@pytest.mark.parametrize("saved", [BRANCHES, CHOSEN, PICKED])
@pytest.mark.parametrize("made", MADE)
def test_what_another_switch_chooses_may_be_the_sharded_one(tmp_path: Path, made: str, saved: str) -> None:
    assert "FM425" in said(tmp_path, made, saved.format("other"))
    assert "FM425" in said(tmp_path, made, saved.format("not on"))


def test_what_is_reached_from_elsewhere_too_may_be_the_sharded_one(tmp_path: Path) -> None:
    both = BRANCHES.format("on") + "\n    save_plain(model, optimizer)"
    assert "FM425" in said(tmp_path, MADE[0], both)
    anew = "on = other\n    " + BRANCHES.format("on")
    assert "FM425" in said(tmp_path, MADE[0], anew)
