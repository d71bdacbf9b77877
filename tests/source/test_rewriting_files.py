"""Files that are rewritten: whole or not at all, with a backup, and with nothing else touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.source import rewrite_paths, rewrite_source, scan_paths


pytestmark = pytest.mark.any_torch


BEFORE = (
    "from torch.distributed.fsdp import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n"
)
AFTER = "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net)\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_nothing_is_written_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    (tmp_path / "b.py").write_text("x = 1\n")
    report = rewrite_paths([tmp_path])
    assert contents(tmp_path) == {"a.py": BEFORE.encode(), "b.py": b"x = 1\n"}
    assert [file.after for file in report.changed] == [AFTER]
    assert report.as_dict()["num_changed"] == 1


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


def test_the_target_of_a_link_is_rewritten_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text(BEFORE)
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "real" / "a.py")
    rewrite_paths([link], write=True)
    assert link.is_symlink()
    assert (tmp_path / "real" / "a.py").read_text() == AFTER


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


def test_a_file_that_changed_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(BEFORE)

    def edit_meanwhile(text: str, name: str, links: object) -> str:
        path.write_text("edited\n")
        return rewrite_source(text, name)

    monkeypatch.setattr("fsdp_migrate.source.rewriting_files.rewrite_linked", edit_meanwhile)
    report = rewrite_paths([path], write=True)
    assert "it changed meanwhile" in str(report.problems[0].problem)
    assert contents(tmp_path) == {"a.py": b"edited\n"}


def test_what_cannot_be_parsed_stays_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import fsdp\nprint 'x'\n")
    (tmp_path / "good.py").write_text(BEFORE)
    report = rewrite_paths([tmp_path], write=True)
    assert "bad.py:2:1: no Python 3" in str(report.problems[0].problem)
    assert (tmp_path / "bad.py").read_text() == "import fsdp\nprint 'x'\n"
    assert (tmp_path / "good.py").read_text() == AFTER


ENCODED = {
    "byte order mark": ("\ufeff" + BEFORE).encode(),
    "latin-1": ("# -*- coding: latin-1 -*-\n# é\n" + BEFORE).encode("latin-1"),
    "CRLF": BEFORE.replace("\n", "\r\n").encode(),
    "CR": BEFORE.replace("\n", "\r").encode(),
    "no end of line": BEFORE.rstrip("\n").encode(),
    "form feed": BEFORE.replace("\nmodel", "\n\f\nx = 1\n\f\nmodel").encode(),
    "tabs": (BEFORE + "if model:\n\twith model.no_sync():\n\t\tpass\n").encode(),
    "odd indents": (BEFORE + "if model:\n  if x:\n       model.no_sync\n").encode(),
    "continued lines": (BEFORE + "x = 1 + \\\n    2\nassert x, \\\n  model\n").encode(),
    "trailing spaces": (BEFORE + "x = 1   \n   \n# end").encode(),
}


@pytest.mark.parametrize("case", ENCODED)
def test_bytes_other_than_the_edits_stay(tmp_path: Path, case: str) -> None:
    data = ENCODED[case]
    (tmp_path / "a.py").write_bytes(data)
    assert rewrite_paths([tmp_path], write=True).problems == ()
    written = (tmp_path / "a.py").read_bytes()
    pairs = [(b"FullyShardedDataParallel(net)", b"prepare_fully_shard(net)")]
    pairs.append(
        (
            b"from torch.distributed.fsdp import FullyShardedDataParallel",
            b"from fsdp_migrate import prepare_fully_shard",
        )
    )
    for old, new in pairs:
        data = data.replace(old, new)
    if b"no_sync" in data:
        end = b"\n"
        data = data.replace(b"prepare_fully_shard" + end, b"prepare_fully_shard" + end + NO_SYNC, 1)
        data = data.replace(b"model.no_sync()", b"no_sync(model)").replace(
            b"model.no_sync", b"partial(no_sync, model)"
        )
        if b"partial" in data:
            data = data.replace(NO_SYNC, NO_SYNC + b"from functools import partial\n")
    assert written == data


NO_SYNC = b"from fsdp_migrate.runtime import no_sync\n"


def test_notebooks_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "import fsdp"}]}')
    assert rewrite_paths([tmp_path], write=True).num_files == 0


def test_the_diff_is_one_that_git_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sources = {"a.py": BEFORE, "b.py": BEFORE.rstrip("\n"), "c.py": BEFORE + "\n\nmodel.no_sync()"}
    for name, text in sources.items():
        Path(name).write_text(text)
    patch = "".join(file.diff for file in rewrite_paths(["."]).changed)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, timeout=400)
    assert {name: Path(name).read_text() for name in sources} == {
        name: rewrite_source(text) for name, text in sources.items()
    }


def test_a_bug_of_ours_does_not_become_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    monkeypatch.setattr(
        "fsdp_migrate.source.rewriting_files.rewrite_linked", lambda text, name, links: "model = (\n"
    )
    report = rewrite_paths([tmp_path], write=True)
    assert "its rewritten text would be no Python" in str(report.problems[0].problem)
    assert contents(tmp_path) == {"a.py": BEFORE.encode()}


def test_what_an_earlier_rewriting_left_is_found_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "m = FSDP(net)\n"
        "m.apply(init)\n"
        "for layer in m.module.layers:\n"
        "    pass\n"
    )
    before = {use.code for use in scan_paths([script]).uses if use.action == "commented"}
    rewrite_paths([script], write=True)
    after = [use.code for use in scan_paths([script]).uses if use.action == "commented"]
    assert before <= set(after)
    assert sorted(after) == ["FM315", "FM322"]
