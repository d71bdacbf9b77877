"""Functions of other files that ask for FSDP1's class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CHECKS = """\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None


def is_sharded(m):
    {answer}
"""
ASKS = """\
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
from checks import is_sharded


def load(m, state):
    if is_sharded(m):
        return
    m.load_state_dict(state)


model = Sharded(net) if sharded else DDP(net)
load(model, {})
"""


@pytest.mark.parametrize(
    ("answer", "is_said"),
    [
        ("return isinstance(m, FSDP)", False),
        ("return FSDP is not None and isinstance(m, FSDP)", False),
        ("return isinstance(m, FSDP) and ready", True),
        ("return isinstance(other, FSDP)", True),
        ("return m is FSDP", True),
    ],
)
def test_a_question_of_another_file_decides_as_the_test_itself(
    tmp_path: Path, answer: str, *, is_said: bool
) -> None:
    (tmp_path / "checks.py").write_text(CHECKS.format(answer=answer))
    (tmp_path / "train.py").write_text(ASKS)
    found = [use for use in scan_paths([tmp_path]).uses if use.action == "commented"]
    assert any(str(use.path).endswith("train.py") and use.line == 9 for use in found) is is_said
