"""Which files are looked at, and what is said of those that cannot be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.files import MAX_BYTES, find_sources
from tests.source.files import CODE, _only, names, write


pytestmark = pytest.mark.any_torch


def test_folders_are_gone_through_without_what_is_not_the_projects(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "src/a.py", "src/b.pyi", "notes.ipynb", "data.json", "run.sh")
    write(tmp_path, ".git/x.py", "node_modules/x.py", "__pycache__/x.py", "venv/x.py")
    write(tmp_path, "env/pyvenv.cfg", "env/lib/x.py")
    assert names(tmp_path) == ["notes.ipynb", "src/a.py", "src/b.pyi", "train.py"]


def test_a_script_of_a_shell_is_no_python_also_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/bash\ntrue\n")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\nprint()\n")
    assert names(tmp_path, "run", "tool") == ["tool"]


@pytest.mark.slow
def test_gitignore_is_respected_at_every_level(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "out/b.py", "src/c.py", "src/gen/d.py", "src/gen/keep.py", "src/old_e.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("out/\nold_*.py\n")
    (tmp_path / "src" / ".gitignore").write_text("gen/*\n!gen/keep.py\n")
    assert names(tmp_path) == ["a.py", "src/c.py", "src/gen/keep.py"]
    assert names(tmp_path, "src") == ["src/c.py", "src/gen/keep.py"]
    assert names(tmp_path, "out/b.py") == ["out/b.py"], "a file that is named is taken all the same"


def test_what_git_tracks_is_no_less_the_projects(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "src/models/net.py", "src/models/later.py", "out/b.py", "out/deep/c.py")
    (tmp_path / ".gitignore").write_text("models/\nout/\n")
    git = ("git", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    assert names(tmp_path) == ["a.py"]
    subprocess.run([*git, "add", "-f", "src/models/net.py"], check=True)
    assert names(tmp_path) == ["a.py", "src/models/net.py"]
    assert names(tmp_path, "src") == ["src/models/net.py"]
    assert names(tmp_path, "src/models") == ["src/models/net.py"]
    assert names(tmp_path, "out") == ["out/b.py", "out/deep/c.py"], "a folder that is named is taken"
    assert names(tmp_path, "out/deep") == ["out/deep/c.py"]


IMPORTS = "from .models.net import Net\nimport pkg.data\n"


@pytest.mark.parametrize("is_copied", [False, True], ids=["no .git", "no git installed"])
@pytest.mark.slow
def test_where_no_git_tells_sources_say_what_is_the_projects(
    tmp_path: Path, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that was downloaded holds what is tracked, and not what says so."""
    if is_copied:
        (tmp_path / ".git").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path))
    write(tmp_path, "pkg/train.py", text=IMPORTS)
    write(tmp_path, "pkg/models/net.py", text="from pkg.models import parts\n")
    write(tmp_path, "pkg/models/parts/__init__.py", "pkg/data.py", "pkg/models/alone.py", text="x = 1\n")
    write(tmp_path, "experiments/own.py", "local_run.py")
    (tmp_path / ".gitignore").write_text("models/\ndata*\nexperiments\nlocal_*\n")
    (tmp_path / "pkg/__init__.py").touch()
    assert names(tmp_path) == [
        *("experiments/own.py", "local_run.py", "pkg/__init__.py", "pkg/data.py"),
        *("pkg/models/net.py", "pkg/models/parts/__init__.py", "pkg/train.py"),
    ]


def test_what_was_made_or_installed_is_not_the_projects_either(tmp_path: Path) -> None:
    write(tmp_path, "train.py", text=f"import json\nimport net\n{CODE}")
    write(tmp_path, "build/lib/net.py", "out/run/3/code.py", "exp_outputs/x.py", "wandb/run-1/code/y.py")
    write(tmp_path, ".cache/z.py", "pkg.egg-info/a.py", "runs_2024/b.py", "other/venv/c.py")
    write(tmp_path, "myenv/lib/json.py", "conda/json/__init__.py", "conda/f.py", "data/long/a.py")
    (tmp_path / "myenv/pyvenv.cfg").touch()
    (tmp_path / "conda/conda-meta").mkdir()
    for number in range(1001):
        (tmp_path / f"data/long/{number}.txt").touch()
    write(tmp_path, "exp3/train.py", text=f"import json\nimport net\n{CODE}")  # as it was run
    (tmp_path / ".gitignore").write_text("*\n!train.py\n")
    assert names(tmp_path) == ["train.py"]


def test_nothing_that_a_repositorys_settings_name_is_run(tmp_path: Path) -> None:
    write(tmp_path, "models/net.py")
    (tmp_path / ".gitignore").write_text("models/\n")
    (tmp_path / "monitor").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "monitor").chmod(0o755)
    git = ("git", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-f", "models/net.py"], check=True)
    subprocess.run([*git, "config", "core.fsmonitor", str(tmp_path / "monitor")], check=True)
    assert names(tmp_path) == ["models/net.py"]
    assert not (tmp_path / "ran").exists()
    subprocess.run([*git, "ls-files"], check=True, capture_output=True)
    assert (tmp_path / "ran").exists()


def test_patterns_and_names_that_repeat(tmp_path: Path) -> None:
    write(tmp_path, "train_a.py", "train_b.py", "other.py", "deep/er/train_c.py", "train.txt")
    assert names(tmp_path, "train_*") == ["train_a.py", "train_b.py"]
    assert names(tmp_path, "**/train_?.py") == ["deep/er/train_c.py", "train_a.py", "train_b.py"]
    assert names(tmp_path, "other.py", ".", "*.py").count("other.py") == 1


@pytest.mark.parametrize("name", ["none.py", "*.rs", "no/such/*.py"])
def test_a_path_without_anything_is_an_error(tmp_path: Path, name: str) -> None:
    write(tmp_path, "a.py")
    with pytest.raises(SourceError, match=r"(There is nothing at|Nothing matches) .*\.") as error:
        find_sources([tmp_path / name])
    assert error.value.path == str(tmp_path / name)


def test_loops_of_links_end(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py")
    (tmp_path / "src" / "again").symlink_to(tmp_path)
    (tmp_path / "src" / "loop.py").symlink_to(tmp_path / "src" / "loop.py")
    (tmp_path / "src" / "gone.py").symlink_to(tmp_path / "none.py")
    (tmp_path / "src" / "same.py").symlink_to(tmp_path / "src" / "a.py")
    report = scan_paths([tmp_path])
    problems = {file.path.rpartition("/")[2]: file.problem for file in report.files if file.problem}
    assert problems.keys() == {"loop.py", "gone.py"}
    assert {use.path for use in report.uses} == {str(tmp_path / "src" / "a.py")}


BROKEN = {
    "no python": (b"from torch.distributed.fsdp import x\ndef f(:\n", r"2:7: no Python 3"),
    "python 2": (b"import fsdp\nprint 'x'\n", r"2:1: no Python 3: Missing parentheses"),
    "tabs and spaces": (b"import fsdp\nif x:\n\ty\n        z\n", r"4:\d+: no Python 3: .*ndent"),
    "an open string": (b"import fsdp\nx = '''\n", r":2:\d+: no Python 3"),
    "conflict marks": (b"<<<<<<< HEAD\nimport fsdp\n=======\n>>>>>>> x\n", r"1:1: no Python 3"),
    "binary": (b"fsdp\0\1\2", "it is binary"),
    "no text": (b"# fsdp \xff\xfe\xfa", "no text that can be decoded"),
    "unknown coding": (b"# -*- coding: klingon -*-\nimport fsdp\n", "no text that can be decoded"),
    "deep": (b"import fsdp\nx = " + b"(" * 5000 + b")" * 5000, "nested too deeply"),
    "long": (b"import fsdp\nx = " + b" and ".join([b"y"] * 9000), "nested too deeply"),
    "many branches": (b"import fsdp\nif x: pass\n" + b"elif y: pass\n" * 9000, "nested too deeply"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_said_and_the_others_go_on(tmp_path: Path, case: str) -> None:
    data, message = BROKEN[case]
    (tmp_path / "bad.py").write_bytes(data)
    write(tmp_path, "good.py")
    report = scan_paths([tmp_path])
    assert report.num_files == 2
    assert {use.path for use in report.uses if use.action == "rewritten"} == {str(tmp_path / "good.py")}
    bad = _only(tuple(file for file in report.files if file.problem))
    assert bad.path.endswith("bad.py")
    assert str(bad.problem).count("\n") == 0
    assert str(bad.problem).startswith(bad.path)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(bad.problem)


@pytest.mark.slow
def test_huge_files_and_folders_that_cannot_be_read_are_skipped_with_a_line(tmp_path: Path) -> None:
    with (tmp_path / "huge.py").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.py")
    report = scan_paths([tmp_path])
    problems = {file.path.rpartition("/")[2]: str(file.problem) for file in report.files}
    assert problems.keys() == {"huge.py", "pipe.py"}
    assert "5,000,001 bytes" in problems["huge.py"]
    assert "it is no file" in problems["pipe.py"]


def test_files_without_permission_are_skipped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "secret.py", "good.py", "closed/a.py")
    read, scan = Path.read_bytes, os.scandir

    def refuse_file(path: Path) -> bytes:
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    def refuse_folder(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(Path, "read_bytes", refuse_file)  # root, who runs these tests, may read everything
    monkeypatch.setattr(os, "scandir", refuse_folder)
    files = scan_paths([tmp_path], num_processes=1).files
    problems = {file.path.rpartition("/")[2]: file.problem for file in files}
    assert problems["good.py"] is None
    assert "cannot be read: Permission denied" in str(problems["secret.py"])
    assert "a folder that cannot be read" in str(problems["closed"])
