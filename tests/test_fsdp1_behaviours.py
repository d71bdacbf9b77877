"""docs/fsdp1_behaviours.md names tests and codes that there are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.finding_codes import FINDING_CODES


pytestmark = pytest.mark.any_torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "fsdp1_behaviours.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def test_each_behaviour_has_an_outcome_and_a_test_that_there_is() -> None:
    assert len(rows()) >= 100
    assert len({row[0] for row in rows()}) >= len(rows()) - 10  # some go on from the row above
    for behaviour, origin, outcome, ours in rows():
        assert behaviour
        assert origin
        assert outcome in {"same", "refused"} or outcome in FINDING_CODES, behaviour
        file, _, name = ours.strip("`").partition("::")
        assert name in names_in(ROOT / file), ours


def test_the_readers_of_other_pages_find_it() -> None:
    assert "fsdp1_behaviours.md" in (ROOT / "docs" / "prepare.md").read_text()
