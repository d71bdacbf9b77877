"""``--html`` and ``--markdown`` of every command that has them: a page, and the same outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from tests.cli.pages.pages import EVIL, PLAN, write


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


COMMANDS = {
    "plan": (PLAN, 0, "1 unit on 2 ranks: 1 thing would change.", ("embed.weight", "FM009", "Units: 1")),
    "strict plan": ((*PLAN, "--strict"), 3, "1 unit on 2 ranks", ("FM009",)),
    "plan with memory": (
        (*PLAN, "--memory", "1kB"),
        1,
        "Does not fit into 1.0 kB: FSDP2 takes",
        ("Forecast of memory", "optimizer state", "What the forecast does not know", "adamw"),
    ),
    "scan": (
        ("scan", "source"),
        0,
        "3 uses of FSDP1 in 1 file of",
        ("FM301", "source/", "torch==2.1.2", "changes"),
    ),
    "strict scan": (("scan", "source", "--strict"), 3, "3 uses of FSDP1", ("What to do",)),
    "verify": (("verify", "one.pt", "other.pt"), 1, "Different: 1 difference, of 1 tensor", ("Differences",)),
    "same": (("verify", "one.pt", "one.pt"), 0, "The same: 1 tensor", ("one.pt",)),
    "check": (("verify", "one.pt"), 0, "Whole: nothing is damaged.", ("have no checksum",)),
    "doctor": (
        ("doctor", "source", "--model", "tests.models:tied_net"),
        0,
        "known faults hit you; ",
        ("deepcopy-of-shards", "pytorch/pytorch#149138", "What was looked at"),
    ),
}


SLOW = {"plan with memory"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in COMMANDS])
def test_a_command_writes_both(name: str, folder: Path, capsys: Capture) -> None:
    command, code, verdict, parts = COMMANDS[name]
    assert main(list(command)) == code
    plain = capsys.readouterr()
    found = write(folder, *command)
    shown = capsys.readouterr()
    assert found[0] == code
    told = [f"The report is in {folder / name}" for name in ("report.html", "report.md")]
    assert shown.out.splitlines() == [*plain.out.splitlines(), *told]
    assert shown.err == plain.err
    for form in found[1:]:
        text = form.whole_text
        assert verdict in text
        assert [part for part in parts if part not in text] == []
        assert "torch" in text
        assert f"fsdp-migrate {' '.join(command)}" in text
    if name in {"scan", "verify"}:
        shown_as = EVIL.replace("\u202e", "\\u202e")
        assert any(shown_as in each.whole_text for form in found[1:] for each in form.find("code"))
