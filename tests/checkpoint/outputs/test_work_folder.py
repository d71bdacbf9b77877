"""The folder in which a conversion works: one at a time, with a lock or without."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.errors import OutputError, OutputExistsError
from tests.checkpoint.partial import WORK, save_source
from tests.checkpoint.samples import assert_nothing_left, contents


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


WISHES: list[dict[str, Any]] = [{}, {"overwrite": True}, {"resume": True}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_source(tmp_path)


def test_two_conversions_into_one_output(source: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(event: object) -> None:
        del event
        for options in WISHES:
            with pytest.raises(OutputError, match="Another conversion is writing") as caught:
                convert_checkpoint(source, tmp_path / "out", world_size=3, **options)
            refused.append(str(caught.value))

    convert_checkpoint(source, tmp_path / "out", world_size=3, progress=second)
    assert refused
    convert_checkpoint(source, tmp_path / "same", world_size=3)
    ours, theirs = contents(tmp_path / "out"), contents(tmp_path / "same")
    assert {n: d for n, d in ours.items() if n != ".metadata"} == {
        n: d for n, d in theirs.items() if n != ".metadata"
    }
    assert_nothing_left(tmp_path, "source", "out", "same")


def test_a_lock_ends_with_its_process(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from fsdp_migrate.checkpoint_convert import convert_checkpoint\n"
        "def wait(event): print('writing', flush=True); time.sleep(60)\n"
        "convert_checkpoint(*sys.argv[1:3], world_size=3, progress=wait)"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        with pytest.raises(OutputError, match="Another conversion is writing"):
            convert_checkpoint(source, tmp_path / "out", world_size=3, resume=True)
        process.send_signal(signal.SIGKILL)
    convert_checkpoint(source, tmp_path / "out", world_size=3, resume=True)
    assert_nothing_left(tmp_path, "source", "out")


def test_a_file_system_without_locks(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        del fd, how
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert_nothing_left(tmp_path, "source", "out")


def test_something_else_where_the_work_would_be_done(source: Path, tmp_path: Path) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK / "thesis.tex").write_text("years of work")
    for options in WISHES:
        with pytest.raises(OutputExistsError, match="something else is there"):
            convert_checkpoint(source, tmp_path / "out", world_size=3, **options)
    assert contents(tmp_path / WORK) == {"thesis.tex": b"years of work"}
