"""What is written already is not written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from tests.checkpoint.partial import leave_partial, save_source
from tests.checkpoint.samples import assert_nothing_left


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_source(tmp_path)


def test_only_what_is_missing_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_partial(source, tmp_path, monkeypatch, world_size=3)
    report = convert_checkpoint(source, tmp_path / "out", world_size=3, resume=True)
    assert 0 < report.bytes_resumed < report.bytes_written
    assert_nothing_left(tmp_path, "source", "out")
