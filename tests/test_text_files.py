"""Text files that are replaced: whole, with a backup, with a diff."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.source import rewrite_paths, rewrite_source
from fsdp_migrate.text_files import unified_diff, write_whole
from tests.source.rewritten import AFTER, BEFORE, contents


pytestmark = pytest.mark.any_torch


def test_files_are_replaced_with_a_backup_and_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    path.chmod(0o755)
    report = rewrite_paths([tmp_path], write=True)
    assert contents(tmp_path) == {"a.py": AFTER.encode(), "a.py.fsdp1": BEFORE.encode()}
    assert path.stat().st_mode & 0o777 == 0o755
    assert [file.backup for file in report.changed] == [str(tmp_path / "a.py.fsdp1")]
    assert rewrite_paths([tmp_path], write=True).changed == ()
    assert contents(tmp_path) == {"a.py": AFTER.encode(), "a.py.fsdp1": BEFORE.encode()}


def test_every_text_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    rewrite_paths([tmp_path], write=True)
    (tmp_path / "a.py").write_text(BEFORE + "# later\n")
    rewrite_paths([tmp_path], write=True)
    assert (tmp_path / "a.py.fsdp1").read_text() == BEFORE
    assert (tmp_path / "a.py.fsdp1.1").read_text() == BEFORE + "# later\n"
    assert (tmp_path / "a.py").read_text() == AFTER + "# later\n"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_every_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(BEFORE)
    calls = []
    real = {"fsync": os.fsync, "replace": Path.replace}[step]

    def fail(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:  # the first writes the backup
            raise OSError(28, "No space left on device")
        return real(*arguments)  # type: ignore[operator]

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    report = rewrite_paths([tmp_path], write=True)
    assert "a.py: left as it is, it cannot be written: No space left" in str(report.problems[0].problem)
    assert contents(tmp_path) == {
        "a.py": BEFORE.encode(),
        "a.py.fsdp1": BEFORE.encode(),
        "b.py": AFTER.encode(),
        "b.py.fsdp1": BEFORE.encode(),
    }


@pytest.mark.parametrize("asked", [".", "../here", "{here}"])
def test_the_diff_is_one_that_git_applies(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    sources = {"a.py": BEFORE, "b.py": BEFORE.rstrip("\n"), "c.py": BEFORE + "\n\nmodel.no_sync()"}
    for name, text in sources.items():
        Path(name).write_text(text)
    patch = "".join(file.diff for file in rewrite_paths([asked.format(here=here)]).changed)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, timeout=400)
    assert {name: Path(name).read_text() for name in sources} == {
        name: rewrite_source(text) for name, text in sources.items()
    }


def test_the_diff_of_a_file_elsewhere_is_named_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    name = (tmp_path / "a.py").as_posix().lstrip("/")
    for asked in ("../a.py", str(tmp_path / "a.py")):
        assert unified_diff("1\n", "2\n", asked).startswith(f"--- a/{name}\n+++ b/{name}\n")


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"text", like=None)
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_whole(link, b"new", like=None)
    assert (link.is_symlink(), file.read_bytes()) == (True, b"new")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"new", like=None)
