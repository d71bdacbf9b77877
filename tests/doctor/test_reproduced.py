"""Faults that the table says are reproduced happen on this torch, if it is one of the versions named."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from fsdp_migrate.doctor import FAULTS
from tests.doctor import known_faults_bodies as known_faults
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def test_known_faults_happen_in_the_versions_that_are_named(tmp_path: Path) -> None:
    expected = {
        fault.name: all(each.covers(metadata.version(each.package)) for each in fault.affects)
        for fault in FAULTS
        if fault.reproduced
    }
    for found in run_ranks(known_faults.happening, str(tmp_path)):
        assert found == expected
