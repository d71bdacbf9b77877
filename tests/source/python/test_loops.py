"""Names that are followed through loops, and come to an end."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.scopes import Index
from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # The target is no use of the name.
        ("for m in m.modules():\n    m.x\n", [False, True]),
        ("y = [m.x for m in m.modules()]\n", [True, False]),
        ("y = [p for m in m.modules() for p in m.y]\n", [False, True]),
    ],
)
def test_what_a_loop_goes_through_stands_in_none_of_its_rounds(code: str, expected: list[bool]) -> None:
    index = Index(cst.parse_module(code))
    names = (cst.ensure_type(each, cst.Name) for each in index.by_kind[cst.Name])
    used = [each for each in names if each.value == "m" and isinstance(index.parents[each], cst.Attribute)]
    found = [any(binds(loop, "m") for loop in loops_around(index, each)) for each in used]
    assert found == expected


@pytest.mark.parametrize(
    "walk",
    [
        (
            "for name, module in module.named_modules():\n"
            "        if any(p.is_meta for p in module.parameters()):\n            module.eval()\n"
        ),
        "while 1:\n        child = parent.blocks[0]\n        parent = child.next\n        parent.w.norm()\n",
        "y = [p.norm() for module in module.modules() for p in module.parameters()]\n",
    ],
)
def test_a_name_that_leads_to_itself_ends(walk: str) -> None:
    body = (
        f"def walk(module, parent):\n    {walk}\n\ndef load(net):\n    walk(net, net)\n    return FSDP(net)\n"
    )
    assert ("FM301", "rewritten") in codes(body)
