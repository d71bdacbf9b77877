"""The page about rules, held against the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.source import rewrite_source, scan_source
from fsdp_migrate.source.python import mentions
from fsdp_migrate.source.rules import RULES, leftovers, unfollowed, unread, unused_imports
from fsdp_migrate.source.settings_in_python import SAID
from tests.ranks import ROOT
from tests.source.samples import IMPORTS


pytestmark = pytest.mark.any_torch


PAGE = (ROOT / "docs" / "rules.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z-]+)` \| (FM[^|]*) \|", PAGE, re.MULTILINE))
EVERY = (*RULES, leftovers, unfollowed, unread, unused_imports, mentions)


def test_every_rule_is_documented_with_its_codes_and_no_other() -> None:
    assert {name: tuple(codes.split(", ")) for name, codes in ROWS.items()} == {
        rule.NAME: rule.CODES for rule in EVERY
    }


def test_cells_are_short_and_the_sections_below_have_the_rest() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| `[a-z-]+` \| FM", line)]
    assert len(rows) == len(EVERY)
    assert [(row[0], len(cell.split())) for row in rows for cell in row[2:] if len(cell.split()) > 30] == []
    more = re.findall(r"\[More\]\(#([a-z-]+)\)", PAGE)
    details = PAGE.partition("\n## The rules in detail\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.*)$", details, re.MULTILINE) == more
    assert set(more) <= set(ROWS)


def test_every_file_of_a_rule_is_asked() -> None:
    files = {path.stem for path in (ROOT / "fsdp_migrate" / "source" / "rules").glob("*.py")} - {"__init__"}
    assert files == {rule.__name__.rpartition(".")[2] for rule in EVERY if rule is not mentions}


def test_every_rule_has_a_file_of_tests() -> None:
    names = {rule.__name__.rpartition(".")[2] for rule in EVERY if rule is not mentions}
    assert {name for name in names if not Path(__file__).with_name(f"test_{name}.py").exists()} == set()


def test_every_code_of_sources_belongs_to_a_rule() -> None:
    known = {code for rule in EVERY for code in rule.CODES}
    of_configs = {code for code in FINDING_CODES if "FM340" <= code <= "FM359"}
    assert {
        code
        for code in FINDING_CODES
        if "FM301" <= code <= "FM336" or "FM420" <= code <= "FM429" or "FM445" <= code <= "FM459"
    } == known - of_configs
    assert known & of_configs == set(SAID)


EXAMPLES = list(
    zip(
        re.findall(r"```python before\n(.*?)```", PAGE, re.DOTALL),
        re.findall(r"```python after\n(.*?)```", PAGE, re.DOTALL),
        strict=True,
    )
)


@pytest.mark.parametrize(("before", "after"), EXAMPLES)
def test_the_examples_become_what_the_page_says(before: str, after: str) -> None:
    assert rewrite_source(before) == after


@pytest.mark.parametrize(
    ("body", "code", "action"),
    [
        ("m = MixedPrecision(param_dtype=torch.float16)\n", "FM310", "kept"),
        ("w = functools.partial(FSDP, device_id=0)\nw(net)\n", "FM331", "rewritten"),
        ("m = FSDP(net)\ntorch.nn.utils.clip_grad_norm_(m.parameters(), 1)\n", "FM326", "rewritten"),
        ("m = FSDP(net)\nm.no_sync()\n", "FM312", "rewritten"),
        ("with FSDP.summon_full_params(net):\n    pass\n", "FM313", "rewritten"),
    ],
)
def test_codes_that_tables_elsewhere_show_by_their_text(body: str, code: str, action: str) -> None:
    assert (code, action) in {(use.code, use.action) for use in scan_source(IMPORTS + body)}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


def test_what_many_a_script_has_by_that_name_itself_is_told_by_its_whole_name() -> None:
    """A script's own ``load_checkpoint`` would call itself, if it were done to the letter."""
    said = [text for rule in EVERY for text in vars(rule).values() if isinstance(text, str)]
    told = [text for text in said if "load_checkpoint(" in text]
    assert told
    assert [text for text in told if re.search(r"(?<!fsdp_migrate\.)\bload_checkpoint\(", text)] == []
