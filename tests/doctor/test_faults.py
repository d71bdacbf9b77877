"""The table of known faults: every entry is whole, and there are enough."""

from __future__ import annotations

import pytest

from fsdp_migrate.doctor import FAULTS


pytestmark = pytest.mark.any_torch


def test_every_entry_is_whole_and_there_are_enough() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= 30
    for fault in FAULTS:
        assert fault.says.endswith(".")
        assert fault.action.endswith(".")
        assert fault.link == "measured" or fault.url.startswith("https://github.com/")
        assert fault.looked_up >= "2026-11-22"
