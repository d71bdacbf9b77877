"""Reports take the place of reports, and of nothing else."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.errors import OutputError, OutputExistsError
from fsdp_migrate.report.files import check_place, write_report
from fsdp_migrate.report.html import write_html
from fsdp_migrate.report.markdown import write_markdown
from tests.report.samples import report_of


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize("write", [write_html, write_markdown])
def test_an_earlier_report_is_replaced(write: object, tmp_path: Path) -> None:
    assert callable(write)
    path = tmp_path / "report"
    write_report(path, write(report_of("a")))
    path.chmod(0o640)
    write_report(path, write(report_of("bbb")))
    assert "bbb" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["report"]


def test_a_new_report_can_be_read_as_any_new_file(tmp_path: Path) -> None:
    write_report(tmp_path / "report", "x")
    (tmp_path / "other").write_text("x")
    assert (tmp_path / "report").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_anything_else_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(OutputExistsError, match="is no report of fsdp-migrate"):
        check_place(tmp_path / "train.py")
    with pytest.raises(OutputExistsError, match="is no report of fsdp-migrate"):
        write_report(tmp_path / "train.py", "x")
    assert (tmp_path / "train.py").read_text() == "print(1)\n"
    with pytest.raises(OutputExistsError, match="is a folder"):
        check_place(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputExistsError, match="is no report"):
        check_place(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none/report.html", "There is no folder"),
        ("a\0b", "cannot be written"),
        ("x" * 300, "cannot be written"),
    ],
)
def test_places_that_cannot_be_are_named_before_the_work(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=said):
        check_place(tmp_path / name)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("")
    (tmp_path / "link.html").symlink_to("real.html")
    write_report(tmp_path / "link.html", "x")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "x"


def test_a_disk_that_is_full_leaves_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_report(path, write_html(report_of("a")))
    before = path.read_text()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError, match=r"No space left on device. Nothing is left of it."):
        write_report(path, "x")
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
