"""Files that are rewritten: whole or not at all, with a backup, and with nothing else touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, rewrite_source, scan_paths
from fsdp_migrate.source.analysis import analyse
from fsdp_migrate.source.following import _Following
from tests.source.projects import CLIPPED, FSDP, LOOP, WRAP
from tests.source.rewritten import AFTER, BEFORE, contents


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.project_scopes import Statement
    from fsdp_migrate.source.python.links import Links


pytestmark = pytest.mark.any_torch


def test_nothing_is_written_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    (tmp_path / "b.py").write_text("x = 1\n")
    report = rewrite_paths([tmp_path])
    assert contents(tmp_path) == {"a.py": BEFORE.encode(), "b.py": b"x = 1\n"}
    assert [file.after for file in report.changed] == [AFTER]
    assert report.as_dict()["num_changed"] == 1


def test_the_target_of_a_link_is_rewritten_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text(BEFORE)
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "real" / "a.py")
    rewrite_paths([link], write=True)
    assert link.is_symlink()
    assert (tmp_path / "real" / "a.py").read_text() == AFTER


def test_a_file_that_changed_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(BEFORE)

    def edit_meanwhile(text: str, name: str, links: object) -> tuple[str, list[object]]:
        path.write_text("edited\n")
        return rewrite_source(text, name), []

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


def test_notebooks_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "import fsdp"}]}')
    assert rewrite_paths([tmp_path], write=True).num_files == 0


def test_a_bug_of_ours_does_not_become_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    monkeypatch.setattr(
        "fsdp_migrate.source.rewriting_files.rewrite_linked", lambda text, name, links: ("model = (\n", [])
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
        "m.module.head = head\n"
    )
    before = {use.code for use in scan_paths([script]).uses if use.action == "commented"}
    rewrite_paths([script], write=True)
    after = [use.code for use in scan_paths([script]).uses if use.action == "commented"]
    assert before <= set(after)
    assert sorted(after) == ["FM315", "FM322"]


def test_a_fault_of_ours_costs_the_file_that_it_is_met_in_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text(BEFORE)
    (tmp_path / "good.py").write_text(BEFORE)

    def fail(code: str, path: str, links: Links) -> object:
        if path.endswith("bad.py"):
            msg = "no such thing"
            raise TypeError(msg)
        return analyse(code, path, links)

    monkeypatch.setattr("fsdp_migrate.source.rewriting.analyse", fail)
    for report in (scan_paths([tmp_path]), rewrite_paths([tmp_path], write=True)):
        [problem] = [file.problem for file in report.files if file.problem]
        assert (
            "bad.py: left as it is, and not searched: TypeError in test_rewriting_files.py, line" in problem
        )
        assert "no such thing. This is a bug in fsdp-migrate." in problem
    assert (tmp_path / "bad.py").read_text() == BEFORE
    assert (tmp_path / "good.py").read_text() == AFTER


def test_a_fault_of_ours_in_going_through_files_costs_that_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = "from loop import train\nfrom dist import wrap\nmodel = wrap(net)\ntrain(model)\n"
    files = {"dist.py": WRAP, "main.py": main, "loop.py": LOOP, "bad.py": f"{FSDP}m = FSDP(net)\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    gone_through = _Following._statement

    def fail(self: _Following, statement: Statement) -> None:
        if statement.place.module.path.name == "bad.py":
            msg = "no such thing"
            raise TypeError(msg)
        gone_through(self, statement)

    monkeypatch.setattr(_Following, "_statement", fail)
    for report in (scan_paths([tmp_path]), rewrite_paths([tmp_path], write=True)):
        [problem] = [file.problem for file in report.files if file.problem]
        assert (
            "bad.py: left as it is, and not searched: TypeError in test_rewriting_files.py, line" in problem
        )
        assert "no such thing. This is a bug in fsdp-migrate." in problem
    assert (tmp_path / "bad.py").read_text() == files["bad.py"]
    assert CLIPPED in (tmp_path / "loop.py").read_text()
