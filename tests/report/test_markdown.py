"""Markdown for a pull request: names in it are texts, and it is no longer than GitHub takes."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from fsdp_migrate.report.markdown import FIRST_LINE, code, prose, write_markdown
from fsdp_migrate.report.model import Code, Name, Report, Table
from fsdp_migrate.report.shorten import cut
from fsdp_migrate.visible import printable
from tests.report.reading import Element, read_page
from tests.report.samples import HOSTILE, report_of


pytestmark = pytest.mark.any_torch

ALLOWED = {
    *("html", "p", "h2", "h3", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
    *("code", "strong", "a", "details", "summary", "br"),
}


def rendered(text: str) -> Element:
    """Return what a reader of Markdown makes of a text that may hold HTML."""
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    body = page.replace(FIRST_LINE, "").replace("<br />", "<br>")
    return read_page(f"<!doctype html>\n<html>{body}</html>\n")


def every(root: Element) -> list[Element]:
    return [root, *(found for child in root.children for found in every(child))]


def linked_by_github(root: Element) -> list[str]:
    """Return what GitHub would link: it looks at everything outside of code and links."""
    found = []
    for each in every(root):
        if each.tag not in {"code", "a"}:
            found += re.findall(r"@\w+|#\d+|GH-\d+|https?://\S+|www\.\S+", each.text)
    return found


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:20]))
def test_names_are_texts_and_nothing_else(name: str) -> None:
    root = rendered(write_markdown(report_of(name, verdict=name)))
    assert {each.tag for each in every(root)} <= ALLOWED
    assert {each.attributes["href"] for each in root.find("a")} == {
        "https://github.com/pytorch/pytorch/issues/1"
    }
    assert linked_by_github(root) == []
    assert [len(each.find("th")) for each in root.find("table")] == [2, 6, 6, 1]
    assert all(len(row.children) in {1, 2, 6} for row in root.find("tr"))
    if name.strip():
        shown = cut(printable(name), 2000).replace("\n", "\\n")
        for table in root.find("table")[1:3]:
            (cell, *others) = table.find("td")
            assert cell.find("code")[0].whole_text.strip() == shown.strip()
            assert others[-1].whole_text == "FM012"


def test_all_hostile_names_at_once() -> None:
    text = write_markdown(report_of(*HOSTILE))
    assert len(text) <= 65_536
    assert {each.tag for each in every(rendered(text))} <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 4000])
def test_ten_thousand_findings_fit_into_a_comment(length: int) -> None:
    rows = tuple((Code("FM012"), Name(f"{'|' * length}{number}")) for number in range(10_000))
    table = Table("Findings", ("code", "about"), rows)
    text = write_markdown(Report("t", "v", "bad", (table, table), (), "c", ""))
    assert len(text.encode()) <= 60_000
    assert text.count("more, which `--json` writes") == 2
    assert "<summary>10,000 in all</summary>" in text


def test_long_lists_are_folded_and_short_ones_are_not() -> None:
    few = write_markdown(report_of("a"))
    many = write_markdown(report_of(*(f"n{number}" for number in range(40))))
    assert few.count("<details>") == 2  # what is folded anyway, and what the codes mean
    assert many.count("<details>") == 3
    assert few.startswith(f"{FIRST_LINE}\n\n## ✗ fsdp-migrate sample: Different: 1 of 2.\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("`a.b` is 2 * 3", r"`a.b` is 2 \* 3"),
        ("owner/repository#12 by @me", "`owner/repository#12` by `@me`"),
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("2.9 kB", "2.9 kB"),
        ("", ""),
    ],
)
def test_sentences(text: str, written: str) -> None:
    assert prose(text) == written


def test_code() -> None:
    assert code("model.layers.0.weight") == "`model.layers.0.weight`"
    assert code("a`b") == "<code>a&#96;b</code>"
    assert code(" a") == "<code> a</code>"
