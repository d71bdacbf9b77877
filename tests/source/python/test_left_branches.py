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


NAMED = f"""\
import torch.nn as nn
{FSDP}
class Base:
    def __init__(self, net, cfg):
        self.net = net


class Reward(Base):
    def __init__(self, net, cfg):
        {{}}
        if isinstance({{}}, FSDP):
            pass
        else:
            {{}}


Reward(FSDP(model), cfg)
"""


@pytest.mark.parametrize(
    ("above", "asked", "below", "is_said"),
    [
        ("self.net = net", "net", "self.net.head = nn.Linear(4, 4)", False),
        ("self.net = net", "self.net", "net.head = nn.Linear(4, 4)", False),
        ("super().__init__(net, cfg)", "net", "self.net.head = nn.Linear(4, 4)", False),
        ("super().__init__(cfg=cfg, net=net)", "net", "self.net.head = nn.Linear(4, 4)", False),
        ("inner = net", "inner", "net.head = nn.Linear(4, 4)", False),
        # Another object, or another one by then.
        ("self.net = net\n        self.net = FSDP(other)", "net", "self.net.head = nn.Linear(4, 4)", True),
        ("self.net = net\n        net = other", "net", "self.net.head = nn.Linear(4, 4)", True),
        ("self.net = FSDP(net)", "net", "self.net.head = nn.Linear(4, 4)", True),
        ("super().__init__(FSDP(cfg.net), net)", "net", "self.net.head = nn.Linear(4, 4)", True),
    ],
)
def test_another_name_of_what_was_asked(
    above: str, asked: str, below: str, tmp_path: Path, *, is_said: bool
) -> None:
    """wuwowuyi/DPO-and-GRPO-implementation asks its argument, and sets on the attribute that keeps it."""
    (tmp_path / "policy.py").write_text(NAMED.format(above, asked, below))
    found = [use.code for use in scan_paths([tmp_path]).uses if use.code == "FM315"]
    assert found == (["FM315"] if is_said else [])
