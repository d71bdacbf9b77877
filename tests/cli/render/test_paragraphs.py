"""Lines that break no word."""

from __future__ import annotations

import pytest

from fsdp_migrate.cli.render.paragraphs import set_definitions, set_lines


pytestmark = pytest.mark.any_torch


LONG = "model.layers.0.self_attention.query_key_value.weight"


@pytest.mark.parametrize("width", [10, 40, 80])
def test_no_word_is_broken(width: int) -> None:
    text = f"{LONG} is a name, and so-called choices|such|as|these|are-not-broken either"
    lines = set_lines(text, width=width, indent="  ")
    assert " ".join(" ".join(lines).split()) == text
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_line_ends_stay_and_the_first_line_has_its_own_beginning() -> None:
    assert set_lines("one\ntwo", width=20, indent="    ", first="  - ") == ["  - one", "    two"]
    assert set_lines("", width=20, first="x") == ["x"]


def test_definitions_stand_side_by_side() -> None:
    rows = [("--to WHO", "who"), (f"--a-very-long-option {LONG}", "more")]
    assert list(set_definitions(rows, width=80)) == [
        "  --to WHO  who",
        f"  --a-very-long-option {LONG}",
        "            more",
    ]
