"""Which entries are a model, which an optimizer, and what their names become."""

from __future__ import annotations

import pytest

from fsdp_migrate.checkpoint_convert.manifest.classify import find_parts
from tests.checkpoint.entries import CASES


@pytest.mark.parametrize("name", sorted(CASES))
def test_parts_are_found_by_structure(name: str) -> None:
    entries, wanted = CASES[name]
    parts = find_parts({entry.key: entry for entry in entries})
    assert {(part.kind, part.prefix) for part in parts} == wanted
    keys = [key for part in parts for key in part.keys]
    assert sorted(keys) == sorted(entry.key for entry in entries)
