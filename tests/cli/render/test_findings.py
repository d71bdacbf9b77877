"""Findings for people: what needs action first, the same said once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main


if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


def test_what_needs_no_action_is_counted(reports: dict[str, list[str]], capsys: Capture) -> None:
    main(reports["config"])
    said = capsys.readouterr().out
    assert re.findall(r"^(\w+) +FM\d+", said, re.MULTILINE) == ["changed"]
    assert "11 more findings need no action (4 equivalent, 3 obsolete, 4 exact); --all shows them." in said
    assert "`fsdp-migrate explain FM354`" in said
    main([*reports["config"], "--all"])
    said = capsys.readouterr().out
    fidelities = re.findall(r"^(\w+) +FM\d+", said, re.MULTILINE)
    assert fidelities[0] == "changed"
    assert set(fidelities) == {"changed", "equivalent", "obsolete", "exact"}
    assert "--all" not in said


def test_what_matters_most_is_first_and_the_same_is_said_once(
    reports: dict[str, list[str]], capsys: Capture
) -> None:
    main(reports["scan"])
    work, _, said = capsys.readouterr().out.partition("To be done by hand")
    assert work.count("FM322") == 1  # which comments stop a run
    assert said.index("FM321") < said.index("FM322")
    assert said.count("FM322") == 1
    assert "train.py:4:1, " in said
    assert "FM325" not in said
    assert "1 x FM301" in said
    assert "1 more use needs no action; --all shows every use." in said
