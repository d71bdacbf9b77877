"""What is no model, by what makes it, has a state of its own in FSDP1's contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.rules.test_unfollowed import found
from tests.source.samples import IMPORTS, codes, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEADER = (
    f"{IMPORTS}from torch.amp import GradScaler\n"
    "from torch.optim.lr_scheduler import ReduceLROnPlateau as Plateau\n"
    "from torch.optim.swa_utils import AveragedModel\nfrom torchdata.stateful_dataloader import Stateful\n"
    "from transformers import get_scheduler\n\n"
)
STATE = """\
def save(model, opt{given}):
    {made}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict(), opt.state_dict(), {asked}.state_dict()
"""
OWN = """\
class Meter{bases}:
    def state_dict(self):
        return {gives}


"""
NONE = [
    ("s = Plateau(opt)", "s", ""),
    ("s = get_scheduler('linear', opt)", "s", ""),
    ("s = None; s = GradScaler() if on else None", "s", ""),
    ("data = Stateful(x)", "data", ""),
    ("pass", "s", "s: torch.optim.lr_scheduler.LRScheduler"),
    ("m = Meter()", "m", ""),
    ("key, s = rng_state_item", "s", ""),
    ("s = emas.Average(model.parameters(), 0.9)", "s", ""),
    ("s = emas.Average(list(self._get_parameters()), 0.9) if on else None", "s", ""),
    ("pass", "self.rng", ""),
]


def _saves(made: str, asked: str, given: str, bases: str = "", gives: str = "vars(self)") -> str:
    own = OWN.format(bases=bases, gives=gives)
    return own + STATE.format(made=made, asked=asked, given=f", {given}" if given else "")


@pytest.mark.parametrize(("made", "asked", "given"), NONE)
def test_what_is_no_model_by_what_makes_it_has_a_state_of_its_own(made: str, asked: str, given: str) -> None:
    after = turned(_saves(made, asked, given), HEADER)
    assert "state = get_model_state_dict(model, " in after
    assert "FM307" not in after


@pytest.mark.parametrize(
    "body",
    [
        _saves("m = AveragedModel(model)", "m", ""),
        _saves("m = make(model)", "m", ""),
        _saves("m = torch.nn.ParameterList(model.parameters())", "m", ""),
        _saves("m = emas.Average(model)", "m", ""),
        _saves("key, m = item", "m", ""),
        _saves("m = Meter(model)", "m", "", bases="(torch.nn.Module)"),
        _saves("m = Meter(model)", "m", "", gives="self.model.state_dict()"),
        _saves("pass", "m", "m: torch.nn.Module"),
    ],
)
def test_what_may_hold_the_model_may_have_its_state(body: str) -> None:
    assert ("FM307", "commented") in codes(body, HEADER)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("model", True),
        ("model: dict", False),
        ("model: 'dict[str, int] | None' = None", False),
        ("model: Optional[str] = None", False),
        ("model: list[nn.Module]", True),
        ("model: Dict[str, Any]", True),
        ("model: nn.Module", True),
    ],
)
def test_a_parameter_that_is_annotated_as_no_module_is_none(
    tmp_path: Path, given: str, *, is_said: bool
) -> None:
    tools = f"import copy\nfrom typing import *\nfrom torch import nn\n\n\ndef run({given}):\n"
    assert bool(found(tmp_path, f"{tools}    return copy.deepcopy(model)\n")) is is_said
