"""What another conversion is, and another source."""

from __future__ import annotations

import io
import os
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder
from fsdp_migrate.errors import CheckpointError, OutputError
from tests.checkpoint.partial import WORK, leave_partial, save_source
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, copy_of


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent


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
    events: list[object] = []

    def change(event: object) -> None:
        events.append(event)
        if how == "size":
            os.truncate(file, file.stat().st_size + 1)
        elif how == "time":
            os.utime(file)
        elif how == "inode" and len(events) == 1:  # a second file may get the number of the first
            status, data = file.stat(), file.read_bytes()
            (tmp_path / "new").write_bytes(data)
            os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
            (tmp_path / "new").replace(file)
        elif how == "gone":
            file.unlink(missing_ok=True)

    with pytest.raises(CheckpointError, match=r"has changed|is gone|is not there"):
        convert_checkpoint(source, tmp_path / "out", link="copy", progress=change)
    assert_nothing_left(tmp_path, "source")


def _link_and_unlink(file: Path) -> None:
    """Do what a backup does that keeps the last of its copies, and drops the one before."""
    other = file.with_name("of a backup")
    os.link(file, other)
    other.unlink()


def _write_again(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        status, data = file.stat(), bytearray(file.read_bytes())
        change(data)
        with file.open("r+b") as opened:
            opened.write(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return write


def _converted_meanwhile(
    source: Path, out: Path, touch: Callable[[Path], None], *names: str, **options: Any
) -> None:
    """Convert, and touch files of the source when all is written, before the last check."""
    touched: list[str] = []

    def progress(event: ProgressEvent) -> None:
        if event.done_bytes == event.total_bytes and not touched:
            for name in names:
                touch(source / name)
                touched.append(name)

    convert_checkpoint(source, out, progress=progress, **options)
    assert touched


NAMES = [".metadata", "__0_0.distcp", "__1_0.distcp"]
TOUCHES = {
    "linked and unlinked": _link_and_unlink,
    "another mode": lambda file: file.chmod(0o640),
    "the same written again": _write_again(lambda data: None),
}


@pytest.mark.parametrize("options", [{"world_size": 3}, {"to": "hf"}, {"link": "copy"}], ids=str)
@pytest.mark.parametrize("how", list(TOUCHES))
def test_a_touch_that_changes_no_byte_is_no_change(how: str, options: dict[str, Any], tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    _converted_meanwhile(source, tmp_path / "out", TOUCHES[how], *NAMES, **options)
    assert verify_checkpoints(source, tmp_path / "out").is_same


@pytest.mark.parametrize("options", [{"world_size": 3}, {"link": "copy"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_other_bytes_are_a_change_whatever_their_time_says(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    source = copy_of(PLAIN, tmp_path, "source")

    items = [item for entry in inspect_checkpoint(source).tensors for item in entry.items]

    def change(data: bytearray) -> None:
        # Of the metadata a name; of the data an element of a tensor, which who reads metadata never sees.
        if name == ".metadata":
            place = data.index(b"weight")
        else:
            item = next(each for each in items if each.file == name)
            with zipfile.ZipFile(io.BytesIO(data[item.offset : item.offset + item.length])) as archive:
                place = data.index(archive.read("archive/data/0"), item.offset)
        data[place] ^= 1

    with pytest.raises(CheckpointError, match="has changed since it was inspected: the system notes a"):
        _converted_meanwhile(source, tmp_path / "out", _write_again(change), name, **options)
    assert_nothing_left(tmp_path, "source")


def test_a_touch_at_every_look_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who touches files all the time is told so, after some comparisons."""
    source, looks = copy_of(PLAIN, tmp_path, "source"), []
    changes = LocalFolder.changes

    def touched(folder: LocalFolder, names: Any) -> Any:
        found = changes(folder, names)
        looks.append(found)
        return {name: (time + len(looks), links) for name, (time, links) in found.items()}

    monkeypatch.setattr(LocalFolder, "changes", touched)
    with pytest.raises(CheckpointError, match="the system notes a change"):
        convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert_nothing_left(tmp_path, "source")
