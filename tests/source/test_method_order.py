"""A method of a class above that one below runs by ``super()``, before it shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BASE = (
    "from copy import deepcopy\n\n\n"
    "class Base:\n    def __init__(self, agent):\n        self.agent = agent\n\n"
    "    def start(self):\n        self.reference = deepcopy(self.agent.model)\n"
)
SHARDS = "        self.agent.model = FSDP(self.agent.model)\n"
ABOVE = "        super().start()\n"
OWN = f"    def _wrap(self):\n{SHARDS}"
WRAPS = "        self._wrap()\n"
START = f"    def start(self):\n{ABOVE}{WRAPS}\n{OWN}"


def is_said(folder: Path, below: str, more: str = "") -> bool:
    """Tell whether the copy in the class above is named."""
    (folder / "base.py").write_text(BASE)
    (folder / "below.py").write_text(f"{FSDP}from base import Base\n\n\nclass Below(Base):\n{below}")
    (folder / "more.py").write_text(more)
    return "FM323" in {use.code for use in scan_paths([folder]).uses}


@pytest.mark.parametrize(
    "below",
    [
        START,
        f"    def start(self):\n{ABOVE}{SHARDS}",
        f"    async def start(self):\n        await super().start()\n        self._wrap()\n\n{OWN}",
        START.replace("self._wrap()", "self._set_up()") + f"\n    def _set_up(self):\n{WRAPS}",
    ],
)
def test_what_it_does_is_done_to_the_plain_model(tmp_path: Path, below: str) -> None:
    assert not is_said(tmp_path, below)


@pytest.mark.parametrize(
    ("below", "more"),
    [
        (f"    def start(self):\n        self._wrap()\n{ABOVE}\n{OWN}", ""),
        (f"    def start(self):\n{SHARDS}{ABOVE}", ""),
        (
            f"    def start(self):\n        for _ in self.rounds:\n    {ABOVE}    {WRAPS}\n{OWN}",
            "",
        ),
        (f"    def start(self):\n{ABOVE}{ABOVE}        self._wrap()\n{ABOVE}\n{OWN}", ""),
        # It may be sharded before it is started.
        (START, "Below(agent)._wrap()\n"),
        (
            f"{START}\n    def load(self):\n{WRAPS}",
            "",
        ),
        (f"    def start(self):\n{ABOVE}\n{OWN}", ""),
        (f"    def load(self):\n{SHARDS}\n    def start(self):\n{ABOVE}        self.load()\n", "x.load()\n"),
        # The method above may be run otherwise.
        (f"    def start(self):\n{ABOVE}{SHARDS}\n    def again(self):\n{ABOVE}", ""),
        (f"    def start(self):\n{ABOVE}{SHARDS}", "from base import Base\nBase.start(trainer)\n"),
        (f"    def shard(self):\n{SHARDS}", ""),
        # Another class below shards it otherwise.
        (
            f"    def start(self):\n{ABOVE}{SHARDS}",
            f"{FSDP}from base import Base\n\n\nclass Other(Base):\n    def shard(self):\n{SHARDS}",
        ),
    ],
)
def test_what_may_be_done_to_the_sharded_one(tmp_path: Path, below: str, more: str) -> None:
    assert is_said(tmp_path, below, more)
