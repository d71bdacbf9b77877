"""Where pages are written, and what else is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from tests.cli.pages.pages import PLAN, write
from tests.report.reading import check_page


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.parity import ParityReport

    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


def test_a_document_stays_alone_on_stdout(folder: Path, capsys: Capture) -> None:
    assert main([*PLAN, "--json", "--html", "report.html"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["command"] == "plan"
    assert shown.err == "The report is in report.html\n"
    check_page((folder / "report.html").read_text())
    assert main(["scan", "source", "--sarif", "--markdown", "report.md"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"


def test_what_cannot_be_written_is_known_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def run(*_: object, **__: object) -> ParityReport:
        raise AssertionError("it was begun")

    monkeypatch.setattr("fsdp_migrate.parity.start.run_parity", run)
    monkeypatch.setattr("fsdp_migrate.demo.run_demo", run)
    for command in (["parity", "--model", "a:b"], ["demo"]):
        for option in ("--html", "--markdown"):
            assert main([*command, option, "fsdp.yaml"]) == 1
            assert "is no report of fsdp-migrate" in capsys.readouterr().err
    assert (folder / "fsdp.yaml").read_text() == "backward_prefetch: BACKWARD_POST\n"


def test_the_keys_in_a_command_line_are_not_shown(folder: Path) -> None:
    write(folder, "verify", "one.pt", "one.pt", "--rename", ".*=https://key:secret@host/x")
    assert "secret" not in (folder / "report.html").read_text()
