"""The optimizer of a model that is checked goes with the check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP, WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAIN = """\
import torch
from tools import run
from wrap import wrap
def main(args):
    model = torch.nn.Linear(2, 2)
    other = torch.nn.Linear(2, 2)
    if args.fsdp:
        model, other = wrap(model), wrap(other)
    run(model, other, torch.optim.AdamW(model.parameters()), torch.load(args.file))
"""
RUN = "def run(model, other, optimizer, x):\n"
IS = "isinstance(model, FSDP)"
LOADED = "optimizer.load_state_dict(x['optimizer'])"
SAVED = "torch.save((model.state_dict(), optimizer.state_dict()), 'x')"
GIVEN = "FSDP.optim_state_dict_to_load(model, optimizer, osd)"
RETURNED = (
    f"{RUN}    if {IS}:\n        with suppress():\n            with FSDP.state_dict_type(model, FULL):\n"
    f"                return model.state_dict(), FSDP.optim_state_dict({{}}, optimizer)\n    {SAVED}\n"
)
MADE = (
    f"{RUN}    osd = x['optimizer']\n    if {{}}:\n        osd = {{}}\n    optimizer.load_state_dict(osd)\n"
)
SHARDED = "with FSDP.state_dict_type(model, FULL):"
IN_A_CONTEXT = f"{RUN}    osd = x['o']\n    {{}}\n        osd = {GIVEN}\n    optimizer.load_state_dict(osd)\n"
IN_A_CLASS = """\
class T:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def save(self):
        if not isinstance(self.{}, FSDP):
            torch.save(self.optimizer.state_dict(), "x")
def run(model, other, optimizer, x):
    T(model, optimizer).save()
"""


def said(folder: Path, tools: str) -> set[str]:
    (folder / "wrap.py").write_text(WRAP)
    (folder / "main.py").write_text(MAIN)
    (folder / "tools.py").write_text(f"import torch\n{FSDP}{tools}")
    uses = scan_paths([folder]).uses
    return {each.text for each in uses if each.code in {"FM333", "FM425", "FM450"} and "opt" in each.text}


@pytest.mark.parametrize(
    ("tools", "is_said"),
    [
        (RETURNED.format("model"), False),
        (RETURNED.format("other"), True),
        (f"{RUN}    if {IS}:\n        pass\n    else:\n        {LOADED}\n", False),
        (f"{RUN}    if {IS} and x:\n        pass\n    else:\n        {LOADED}\n", True),
        (f"{RUN}    if isinstance(other, FSDP):\n        pass\n    else:\n        {LOADED}\n", True),
        (f"{RUN}    {LOADED}\n    if not {IS}:\n        pass\n", True),
        (f"{RUN}    is_fsdp = {IS}\n    if not is_fsdp:\n        {LOADED}\n", False),
        (MADE.format(IS, GIVEN), False),
        (MADE.format("x.fsdp", GIVEN), False),
        (MADE.format("x.rank == 0", GIVEN), True),
        (MADE.format(f"not {IS}", GIVEN), True),
        (MADE.format(f"{IS} and x.rank == 0", GIVEN), True),
        (MADE.format(IS, "moved(osd)"), True),
        (MADE.format(IS, "moved(model, osd)"), True),
        (MADE.format("x.fsdp", "moved(osd)"), True),
        (IN_A_CONTEXT.format(SHARDED), False),
        (IN_A_CONTEXT.format(f"with timer(), warnings.catch_warnings():\n      {SHARDED}"), False),
        (IN_A_CONTEXT.format("with contextlib.suppress(KeyError):"), True),
        (IN_A_CONTEXT.format("if x.rank == 0:"), True),
        (IN_A_CLASS.format("model"), False),
        (IN_A_CLASS.format("ema_model"), True),
    ],
)
def test_an_optimizer_goes_with_the_check_of_its_model(tmp_path: Path, tools: str, is_said: bool) -> None:
    assert bool(said(tmp_path, tools)) is is_said
