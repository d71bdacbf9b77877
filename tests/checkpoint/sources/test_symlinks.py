"""Links within a checkpoint, and those that lead out of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import CheckpointFormatError
from tests.checkpoint.damage import refuse
from tests.checkpoint.samples import (
    PLAIN,
    copy_of,
)


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_link_that_leads_outside(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    shutil.move(source / "__1_0.distcp", tmp_path / "elsewhere")
    (source / "__1_0.distcp").symlink_to(tmp_path / "elsewhere")
    refuse(source, tmp_path, "is a link to something outside", CheckpointFormatError)


def test_a_link_that_stays_inside(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / "__1_0.distcp").rename(source / "real.bin")
    (source / "__1_0.distcp").symlink_to("real.bin")
    convert_checkpoint(source, tmp_path / "out")
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same


def test_another_file_that_leads_outside_stays_behind(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (tmp_path / "secret").write_text("x")
    (source / "notes").symlink_to(tmp_path / "secret")
    report = convert_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out" / "notes").exists()
    assert "FM212" in {finding.code for finding in report.findings}
