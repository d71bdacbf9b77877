"""What another conversion is, and another source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.errors import CheckpointError, OutputError
from tests.checkpoint.partial import WORK, leave_partial, save_source
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, copy_of


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_source(tmp_path)


@pytest.mark.parametrize("change", ["plan", "source", "time"])
def test_another_conversion_is_not_gone_on_with(
    change: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_partial(source, tmp_path, monkeypatch, world_size=3)
    before = contents(tmp_path / WORK)
    if change == "source":
        (source / "notes.txt").write_text("new")
    if change == "time":
        os.utime(source / "__0_0.distcp")
    with pytest.raises(OutputError, match="cannot be continued"):
        convert_checkpoint(source, tmp_path / "out", world_size=2 + (change != "plan"), resume=True)
    assert contents(tmp_path / WORK) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["size", "time", "inode", "gone"])
def test_a_source_that_changes_while_it_is_converted(how: str, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    file = source / "__1_0.distcp"

    def change(event: object) -> None:
        del event
        if how == "size":
            os.truncate(file, file.stat().st_size + 1)
        elif how == "time":
            os.utime(file)
        elif how == "inode":
            status, data = file.stat(), file.read_bytes()
            (tmp_path / "new").write_bytes(data)
            os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
            (tmp_path / "new").replace(file)
        else:
            file.unlink(missing_ok=True)

    with pytest.raises(CheckpointError, match=r"has changed|is gone|is not there"):
        convert_checkpoint(source, tmp_path / "out", link="copy", progress=change)
    assert_nothing_left(tmp_path, "source")
