"""Units of FSDP1's that a function looks for, here and in another file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

USED = "parent = above(net)\nif parent is not None:\n    parent.apply(scale)\n"
LOOKS = [
    ("    while not isinstance(p, FSDP):\n        p = p.parent\n    return p\n", True),
    ("    for p in m.modules():\n        if isinstance(p, FSDP):\n            return p\n", True),
    ("    while not isinstance(p, FSDP):\n        if p.last:\n            break\n    return p\n", False),
    ("    while isinstance(p, FSDP):\n        p = p.parent\n    return p\n", False),
    ("    for p in m.modules():\n        if isinstance(p, Other):\n            return p\n", False),
]


@pytest.mark.parametrize(("looks", "is_said"), LOOKS)
def test_what_is_looked_for_by_its_class(tmp_path: Path, looks: str, is_said: bool) -> None:
    """FSDP1's ``apply`` gathered the parameters, the module's own works on shards."""
    above = f"def above(m):\n    p = m.start\n{looks}"
    assert (("FM322", "commented") in codes(f"{above}{USED}")) is is_said
    files = {"units.py": f"{FSDP}{above}", "use.py": f"from units import above\n{USED}"}
    assert ("FM322" in after(tmp_path, files, "use.py")) is is_said


def test_a_unit_behind_the_loop_that_looks_for_it() -> None:
    body = "while not isinstance(p, FSDP):\n    {}\n    p = p.parent\n{}\n"
    assert ("FM322", "commented") in codes(body.format("pass", "p.apply(scale)"))
    assert ("FM322", "commented") not in codes(body.format("p.apply(scale)", "pass"))
