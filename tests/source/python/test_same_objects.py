"""Another name of what a check found to be none of FSDP1's models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

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
