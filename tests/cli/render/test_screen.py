"""Where reports go, that no word of theirs breaks, and that what needs action is all that they show."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main


if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


NAMES = ("inspect", "convert", "verify", "different", "plan", "config", "scan", "rewrite")


@pytest.mark.alike
@pytest.mark.parametrize("name", NAMES)
def test_reports_are_on_stdout_and_no_word_breaks(
    name: str, reports: dict[str, list[str]], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = (
        [*reports[name], "--all"]
        if name in {"inspect", "convert", "plan", "config", "scan"}
        else reports[name]
    )
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "2000")
    main(every)
    wide = capsys.readouterr()
    assert wide.err == ""
    for width in (80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        main(every)
        said = capsys.readouterr().out
        lines = set(re.findall(r"[^\s─]+", said))
        assert lines == set(re.findall(r"[^\s─]+", wide.out))


def test_a_report_can_be_piped(reports: dict[str, list[str]]) -> None:
    command = [sys.executable, "-m", "fsdp_migrate", *reports["inspect"]]
    done = subprocess.run(
        f"{shlex.join(command)} | grep -c optimizer", shell=True, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0


def test_the_reader_that_goes_away_is_no_error(reports: dict[str, list[str]]) -> None:
    command = [sys.executable, "-m", "fsdp_migrate", *reports["inspect"], "--all"]
    done = subprocess.run(
        f"{shlex.join(command)} | true", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
