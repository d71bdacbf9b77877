"""What is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.doctor import examine, look
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
