"""Holds docs/composer.md to the code."""

from __future__ import annotations

import re

import pytest

from fsdp_migrate.adapters.composer_trainer.companions import COMPANIONS
from fsdp_migrate.adapters.config_objects.composer import COMPOSER_FIELDS, composer_fsdp1_config
from fsdp_migrate.adapters.config_objects.composer_fields import DEFAULTS
from fsdp_migrate.adapters.config_objects.composer_marks import MODEL_MARKS
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.mapping import map_config
from tests.adapters.config_objects.test_composer import VALUES
from tests.ranks import ROOT


PAGE = (ROOT / "docs" / "composer.md").read_text()


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1:]]


BESIDE = ROOT / "tests" / "adapters" / "composer_trainer"
FIELDS = {name.strip("` "): set(codes.split(", ")) for name, _, codes in rows("Fields of `FSDPConfig`")}


def test_every_field_and_mark_is_in_its_table() -> None:
    assert tuple(FIELDS) == COMPOSER_FIELDS
    assert {row[0].strip("` ") for row in rows("What the model says")} == set(MODEL_MARKS)
    assert set().union(*FIELDS.values()) <= set(FINDING_CODES)


@pytest.mark.parametrize("name", COMPOSER_FIELDS)
def test_the_codes_of_a_field_are_those_that_it_has(name: str) -> None:
    for value in (VALUES[name], DEFAULTS[name]):
        mapping = composer_fsdp1_config({name: value}, precision="amp_bf16")
        findings = [*mapping.findings, *map_config(mapping.config)[1]]
        assert {found.code for found in findings if found.subject.split(".")[0] == name} <= FIELDS[name]


def test_the_arguments_of_the_callback_are_told() -> None:
    source = (ROOT / "adapters" / "composer_callback.py").read_text()
    taken = re.findall(
        r"^        (\w+): [^\n]* = ", source.split("def __init__(")[1].split(")")[0], re.MULTILINE
    )
    told = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Fields")[0], re.MULTILINE)
    assert taken == told


def test_what_stands_beside_composers_tests_is_there() -> None:
    """Each file of ours that the table names is one, and holds the cases that stand behind it."""
    cells = [row[3] for row in rows("Composer's own tests of FSDP2")]
    named = [
        (path, case)
        for cell in cells
        for path, cases in re.findall(r"`([\w/]+\.py)`((?:,? \[[^]]+\])*)", cell)
        for case in (re.findall(r"\[([^]]+)\]", cases) or [""])
    ]
    assert len(named) > 40
    for path, case in named:
        file = ROOT / path if "/" in path else BESIDE / path
        assert case in file.read_text(), (path, case)


def test_the_table_of_callbacks_and_algorithms_is_that_of_the_code() -> None:
    told = rows("Composer's other callbacks and algorithms")
    assert told == [[f"`{row.name}`", row.outcome, row.text] for row in COMPANIONS]
