"""Parts of a model that are wrapped, and a whole that is wrapped only where none of them is."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source, scan_source
from tests.source.projects import FSDP


pytestmark = pytest.mark.any_torch

# As RC-DPO has it.
HELPER = "def is_sharded(model):\n    return any(isinstance(m, FSDP) for m in model.modules())\n\n"
WRAP = "def wrap(model):\n{}    model = FSDP(model)\n    return model\n\n"
PARTS = (
    "def main(net):\n    for i in range(len(net.heads)):\n        net.heads[i] = FSDP(net.heads[i])\n"
    "    net = wrap(net)\n"
)
ANY = "any(isinstance(m, FSDP) for m in model.modules())"


def nested(above: str) -> dict[int, str]:
    """Return what is said of FSDP inside FSDP, by the lines."""
    uses = scan_source(f"{FSDP}{HELPER}{WRAP.format(above)}{PARTS}")
    return {use.line: use.becomes for use in uses if use.code == "FM303"}


UNLESS = [
    "    if is_sharded(model):\n        return model\n",
    f"    if {ANY}:\n        return model.cuda()\n",
    f"    if {ANY}:\n        raise ValueError('wrapped')\n",
    f"    if cfg.off or {ANY}:\n        return model\n",
    f"    has_any = {ANY}\n    if has_any:\n        return model\n",
    f"    assert not {ANY}\n",
    "    for m in model.modules():\n        if isinstance(m, FSDP):\n            return model\n",
]
OTHERS = [
    "",
    "    if isinstance(model, FSDP):\n        return model\n",
    "    if is_sharded(other):\n        return model\n",
    "    if is_sharded(model):\n        print(model)\n",
    f"    if cfg.skip and {ANY}:\n        return model\n",
    "    if any(isinstance(m, FSDP) for m in model.children()):\n        return model\n",
    "    if any(isinstance(m, Linear) for m in model.modules()):\n        return model\n",
    "    for m in model.modules():\n        if isinstance(m, FSDP):\n            continue\n",
    "    for m in other.modules():\n        if isinstance(m, FSDP):\n            return model\n",
]


@pytest.mark.parametrize("above", UNLESS)
def test_a_whole_that_is_wrapped_only_without_parts_is_turned(above: str) -> None:
    (said,) = nested(above).values()
    assert "none around the whole" in said
    assert "FSDP inside FSDP" not in said
    after = rewrite_source(f"{FSDP}{HELPER}{WRAP.format(above)}{PARTS}")
    assert "    model = prepare_fully_shard(model)\n" in after
    assert "isinstance(m, FSDPModule)" in after


@pytest.mark.parametrize("above", OTHERS)
def test_another_whole_is_around_its_parts(above: str) -> None:
    said = nested(above)
    assert len(said) == 2
    assert not any("none around the whole" in each for each in said.values())


def test_a_third_that_is_around_them_counts() -> None:
    more = f"{FSDP}{HELPER}{WRAP.format(UNLESS[0])}{PARTS}    net = FSDP(net)\n"
    said = [use.becomes for use in scan_source(more) if use.code == "FM303"]
    assert len(said) == 2
    assert all("FSDP inside FSDP" in each for each in said)
