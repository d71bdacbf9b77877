"""What is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch import nn

from fsdp_migrate.checkpoint_convert import inspect_checkpoint
from fsdp_migrate.doctor import Sight, examine, look
from fsdp_migrate.findings import make_finding
from fsdp_migrate.source.pins import PinFound
from tests.checkpoint.samples import PLAIN
from tests.doctor.sights import NOW


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_versions_that_the_repository_asks_for_count_too(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.7.0\ntransformers==4.57.0\naccelerate>=1\n")
    config = tmp_path / "hf.yaml"
    config.write_text("fsdp: full_shard\nfsdp_config: {version: 2, backward_prefetch: backward_pre}\n")
    sight = look(config=config, paths=[str(tmp_path)])
    assert [(pin.package, pin.version) for pin in sight.exact_pins] == [
        ("torch", "2.7.0"),
        ("transformers", "4.57.0"),
    ]
    here = replace(sight, versions=NOW, has_accelerator=False)
    found = {each.fault.name: each.seen for each in examine(here).symptoms}
    assert f"with torch 2.7.0 of {tmp_path}/requirements.txt:1" in found["gloo-averages"]
    # transformers 4.57 has no FSDP2: it is not a version to look at, but one to raise.
    assert "transformers==4.57.0 (needed: 5.0)" in found["requirement-without-fsdp2"]
    assert "trainer-ignores-version" not in found
    assert [pin.package for pin in examine(here).pinned] == ["torch"]
    same = replace(here, versions={**NOW, "torch": "2.7.0+cpu"})
    assert examine(same).pinned == ()


def test_three_places_of_a_fault_are_named_and_how_many_more_there_are() -> None:
    copies = "x = deepcopy(model)\n" * 2
    sources = {"a.py": copies, "b.py": f"# deepcopy(model)\n{copies}", "c.py": "net.to('meta')\n"}
    pins = tuple(PinFound("requirements.txt", line, "torch", "torch==2.5", "2.6") for line in range(1, 6))
    moments = [make_finding("FM217", name, f"`{name}` is equal.") for name in "abcde"]
    manifest = replace(inspect_checkpoint(PLAIN), findings=tuple(moments))
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    for number in range(0, 8, 2):
        model[number].bias = model[number + 1].bias
    sight = Sight(versions=NOW, sources=sources, pins=pins, manifest=manifest, model=model)
    seen = {each.fault.name: each.seen for each in examine(sight).symptoms}
    assert seen["deepcopy-of-shards"] == "a.py:1, a.py:2, b.py:2 and 1 more"
    assert seen["requirement-without-fsdp2"].count("requirements.txt:") == 3
    assert seen["requirement-without-fsdp2"].endswith("and 2 more")
    assert seen["corrupt-full-optimizer"].startswith("FM217: `a` is equal; FM217: `b`")
    assert seen["corrupt-full-optimizer"].endswith("and 2 more")
    assert [
        each for each in seen.values() if each.count(" are one parameter") == 3 and each.endswith("1 more")
    ]
