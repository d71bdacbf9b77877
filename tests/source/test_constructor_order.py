"""Methods of a constructor before and after the one that shards the model, over files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


LOADER = """\
from torch.nn.parallel import DistributedDataParallel as DDP
from states import load
class Loader:
    def __init__(self):
        self.model = build()
        {calls}
    def _read(self):
        load(self.model)
        self.model.load_state_dict({{}})
    def _prepare(self):
        if ddp:
            self.model = DDP(self.model)
        else:
            self._shard()
    def _shard(self):
        self.model = FSDP(self.model)
"""
STATES = "def load(model):\n    model.load_state_dict({})\n"


@pytest.mark.parametrize(
    ("calls", "more", "is_said"),
    [
        ("self._read()\n        self._prepare()", "", False),
        ("self._prepare()\n        self._read()", "", True),
        ("self._read()\n        self._prepare()\n        self._read()", "", True),
        ("for _ in range(2):\n            self._read()\n        self._prepare()", "", True),
        ("self._read()\n        self._prepare()", "    def again(self):\n        self._read()\n", True),
    ],
)
def test_a_model_before_the_method_that_shards_it(
    tmp_path: Path, calls: str, more: str, is_said: bool
) -> None:
    (tmp_path / "states.py").write_text(STATES)
    (tmp_path / "loader.py").write_text(f"{FSDP}{LOADER.format(calls=calls)}{more}")
    said = {use.path.rpartition("/")[2] for use in scan_paths([tmp_path]).uses if use.code == "FM333"}
    assert ("states.py" in said) is is_said
    assert ("loader.py" in said) is is_said
