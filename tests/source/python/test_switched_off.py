"""Models of makers that are told by an argument not to shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.python.switched_off import is_switched_off
from tests.source.projects import FSDP, after
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAKER = (
    "def build(c, on=False, **more):\n    m = Net(c)\n    if c.x:\n        m = FSDP(m)\n    return m\n\n\n"
)
COPIED = "import copy\nmodel = build(c, {}={})\ntwin = copy.deepcopy(model)\n"
GIVEN = [
    ("use_fsdp", "False", True),
    ("fsdp_enabled", "False", True),
    ("fsdp", "None", True),
    ("shard", "False", True),
    ("wrap", "False", True),
    ("wrap_layers", "False", False),
    ("distributed", "0", True),
    ("use_fsdp", "args.fsdp", False),
    ("use_fsdp", "True", False),
    ("fsdp_cpu_offload", "False", False),
    ("shard_optimizer", "False", False),
    ("compile", "False", False),
]


@pytest.mark.parametrize(("name", "value", "is_off"), GIVEN)
def test_a_maker_that_is_told_not_to_shard(tmp_path: Path, name: str, value: str, is_off: bool) -> None:
    maker, used = MAKER.replace("on", name, 1), COPIED.format(name, value)
    assert is_switched_off([("c", "False"), (name, value)]) is is_off
    assert (("FM323", "commented") in codes(f"{maker}{used}")) is not is_off
    files = {"make.py": f"{FSDP}{maker}", "use.py": f"from make import build\n{used}"}
    assert ("FM323" in after(tmp_path, files, "use.py")) is not is_off
