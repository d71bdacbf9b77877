"""What a function takes out of a model, where the sharded one has returned above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


UNWRAP = """\
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(m):
    if isinstance(m, (DDP, FSDP)):
        return m.module
    return m


def state(m):
    if {test}:
        return None
    {use}


def wrap(net):
    if sharded:
        return FSDP(net)
    return DDP(net)


"""
RUN = """\
import lib

model = lib.wrap(net)
inner = lib.unwrap(model)
lib.state(model)
"""
DIRECT = "return unwrap(m).state_dict()"
BY_NAME = "inner = unwrap(m)\n    return inner.state_dict()"


@pytest.mark.parametrize(
    ("test", "use", "is_said"),
    [
        ("isinstance(m, FSDP)", DIRECT, False),
        ("isinstance(m, FSDP)", BY_NAME, False),
        ("FSDP is not None and isinstance(m, FSDP)", DIRECT, False),
        ("FSDP and isinstance(m, FSDP)", DIRECT, False),
        ("isinstance(m, FSDP) or ready", DIRECT, False),
        ("ready", DIRECT, True),
        ("isinstance(other, FSDP)", DIRECT, True),
        ("isinstance(m, FSDP)", "return unwrap(pick(m)).state_dict()", True),
    ],
)
def test_what_is_taken_out_of_a_model_below_the_others_return(
    tmp_path: Path, test: str, use: str, *, is_said: bool
) -> None:
    """The sharded model has returned above, so that nothing is to be said of what is unwrapped below."""
    source = UNWRAP.format(test=test, use=use)
    (tmp_path / "lib.py").write_text(f"{FSDP}{source}")
    (tmp_path / "train.py").write_text(RUN)
    lines = source.splitlines()
    last = max(number for number, line in enumerate(lines, 1) if "state_dict()" in line)
    found = [use for use in scan_paths([tmp_path]).uses if use.action == "commented"]
    above = FSDP.count("\n")
    assert any(use.line - above == last for use in found) is is_said
