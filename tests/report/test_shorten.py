"""Reports fit: the longest lists for which there is room, whatever the names are."""

from __future__ import annotations

import pytest

from fsdp_migrate.report.model import Commands, Name, Node, Notes, Step, Table
from fsdp_migrate.report.shorten import Limits, cut, fit, shorten, without_secrets
from tests.report.samples import report_of


pytestmark = pytest.mark.any_torch


def test_rows_are_cut_and_counted_at_every_depth() -> None:
    table = Table("t", ("c",), (("1",), ("2",), ("3",)), more=4)
    assert shorten(table, Limits(2, 9)).more == 5
    step = Step("s", Commands(("a", "b", "c")))
    assert shorten(step, Limits(1, 9)).commands == Commands(("a",), more=2)


def test_what_is_shown_has_harmless_characters() -> None:
    assert shorten(Notes("n", ("a\x00\u202eb\nc",)), Limits(9, 99)).rows == ("a\\x00\\u202eb\nc",)
    assert shorten(Name("a\nb"), Limits(9, 99)).text == "a\\nb"
    assert shorten(Commands(("a\tb",)), Limits(9, 99)).rows == ("a\\tb",)
    assert shorten(Node(0, "a\nb", "c"), Limits(9, 99)).name == "a\\nb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        ("https://h/a?sig=1&b=2 b?", "https://h/a?… b?"),
        ("https://user:pass@h/a", "https://…@h/a"),
        ("https://user:p@ss@h/a@b", "https://…@h/a@b"),
        ("--a=s3://k:s@b/c,s3://k:s@b/c?d=s3://e&sig=f", "--a=s3://…@b/c,s3://…@b/c?…"),
        ("'https://h?sig=1' and `x?y`", "'https://h?…' and `x?y`"),
        ("me@h", "me@h"),
    ],
)
def test_addresses_lose_what_opens_them(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("most", [3, 4, 9])
def test_a_cut_text_has_both_ends(most: int) -> None:
    shown = cut("abcdefghij", most)
    assert len(shown) == most
    assert (shown[0], shown[-1]) == ("a", "j")


def test_the_longest_that_fits_is_taken() -> None:
    tried = []

    def write(report: object, limits: Limits) -> str:
        tried.append(limits)
        return "x" * limits.rows * limits.characters

    text = fit(report_of("a"), write, most_bytes=100_000)
    assert len(text) == 500 * 200
    assert [each.rows for each in tried] == [1000, 1000, 500]


def test_a_verdict_is_a_line() -> None:
    text = fit(report_of("a", verdict="x" * 5000), lambda report, _: report.verdict, most_bytes=9999)
    assert len(text) == 300
