"""Objects that hand on what they are asked to the model they hold, where FSDP2's functions are given them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HOLDER = (
    "class Holder{}:\n    def __init__(self, net):\n        self.net = net\n"
    "    def put(self, net):\n        self.net = net\n"
)
HANDS_ON = "    def __getattr__(self, name):\n        return getattr(self.net, name)\n"
PREPARED = (
    "from accelerate import Accelerator\nfrom accelerate.utils import FullyShardedDataParallelPlugin\n{}\n"
    "def main(net, optimizer):\n    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "    net, optimizer = accelerator.prepare(net, optimizer)\n    held = Holder(net)\n    {}\n"
)
GIVEN = [
    "accelerator.save_model(held, 'out')",
    "accelerator.get_state_dict(held)",
    "accelerator.get_state_dict(model=held)",
]


def told(code: str) -> list[str]:
    uses = (use for use in scan_source(code) if use.action == "commented")
    return [use.becomes for use in uses if use.code == "FM308"]


@pytest.mark.parametrize("line", GIVEN)
def test_accelerate_is_to_be_given_what_it_holds(line: str) -> None:
    (said,) = told(PREPARED.format(HOLDER.format("") + HANDS_ON, line))
    assert "`held` is no module" in said
    assert "Give it `held.net`." in said


@pytest.mark.parametrize(
    ("base", "hands_on", "line"),
    [
        ("(torch.nn.Module)", HANDS_ON, GIVEN[0]),
        ("", HANDS_ON, "accelerator.save_model(held.net, 'out')"),
        ("", HANDS_ON, "accelerator.save_model(net, 'out')"),
        ("", HANDS_ON, "accelerator.unwrap_model(held)"),
        ("", HANDS_ON, "other.save_model(held, 'out')"),
        ("", "", GIVEN[0]),
    ],
)
def test_other_objects_and_its_model_itself_are_not_told(base: str, hands_on: str, line: str) -> None:
    assert told(PREPARED.format(HOLDER.format(base) + hands_on, line)) == []


def test_its_whole_state_is_that_of_what_it_holds() -> None:
    code = PREPARED.format(HOLDER.format("") + HANDS_ON, "held.state_dict()")
    (use,) = (use for use in scan_source(code) if use.code == "FM333")
    assert "accelerator.get_state_dict(held.net)" in use.becomes


def test_a_function_of_another_file_is_given_one_that_gets_its_model_later(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDER.format("") + HANDS_ON)
    (tmp_path / "tools.py").write_text(
        "def save(accelerator, model):\n    accelerator.save_model(model, 'out')\n"
    )
    lines = "held = Holder(None)\n    held.put(net)\n    save(accelerator, held)"
    imports = "from holder import Holder\nfrom tools import save\n"
    (tmp_path / "train.py").write_text(
        PREPARED.format(imports, lines).replace("    held = Holder(net)\n", "")
    )
    (use,) = (use for use in scan_paths([tmp_path]).uses if use.code == "FM308")
    assert (use.path, use.line) == (str(tmp_path / "tools.py"), 2)
    assert "Give it `model.net`." in use.becomes


WRAPPED = "{}\ndef main(net, optimizer):\n    held = Holder(FSDP(net))\n    {}\n"
STATE = "with FSDP.state_dict_type(held, StateDictType.FULL_STATE_DICT):\n        state = {}"


@pytest.mark.parametrize(
    ("line", "code", "becomes"),
    [
        (STATE.format("held.state_dict()"), "FM308", "get_model_state_dict(held.net, options="),
        (STATE.format("FSDP.optim_state_dict(held, optimizer)"), "FM309", "full_optimizer_state_dict("),
        ("held.clip_grad_norm_(1.0)", "FM311", "clip_grad_norm_(held.net, ...)"),
        ("with held.no_sync(): pass", "FM333", "no_sync"),
    ],
)
def test_what_would_be_given_one_is_left_to_a_person(line: str, code: str, becomes: str) -> None:
    imports = f"{FSDP}from torch.distributed.fsdp import StateDictType\n"
    for holder, is_one in (
        (HOLDER.format("") + HANDS_ON, True),
        (HOLDER.format("(Other)") + HANDS_ON, False),
    ):
        uses = [use for use in scan_source(imports + WRAPPED.format(holder, line)) if use.code == code]
        said = [use.becomes for use in uses if use.action == "commented"]
        assert (len(said) == 1 and becomes in said[0]) is is_one
    whole = rewrite_source(imports + WRAPPED.format("", line.replace("held", "net")))
    assert "is no module" not in whole
