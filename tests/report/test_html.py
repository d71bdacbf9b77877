"""Pages: well formed, harmless whatever the names are, small, and made for everybody."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html import unescape

import pytest

from fsdp_migrate.report.html import write_html
from fsdp_migrate.report.model import Code, Link, Name, Report, Table
from fsdp_migrate.report.shorten import cut, without_secrets
from fsdp_migrate.visible import printable
from tests.ranks import ROOT
from tests.report.reading import check_page
from tests.report.samples import HOSTILE, report_of


pytestmark = pytest.mark.any_torch

FOLDER = ROOT / "fsdp_migrate" / "report" / "page"


def test_every_kind_of_section_is_there() -> None:
    root = check_page(write_html(report_of("model.weight", "model.bias")))
    titles = [each.whole_text for each in root.find("h2")]
    assert titles[:8] == [
        "What was compared",
        "Losses",
        "Differences",
        "Folded",
        "Links",
        "Units",
        "What to do",
        "Notes",
    ]
    assert titles[8:] == ["What the codes mean", "How it was made"]
    assert root.find("h1")[0].whole_text.split() == [
        "fsdp-migrate",
        "sample",
        "✗",
        "Different:",
        "1",
        "of",
        "2.",
    ]
    assert "Not drawn, for they are no finite numbers: 1." in root.find("figcaption")[0].whole_text
    assert [each.attributes["id"] for each in root.find("details") if "id" in each.attributes] == ["FM012"]
    assert [each.attributes["href"] for each in root.find("td")[-1].find("a")] == [
        "https://github.com/pytorch/pytorch/issues/1"
    ]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:20]))
def test_names_are_texts_and_nothing_else(name: str) -> None:
    root = check_page(write_html(report_of(name)))
    shown = cut(printable(name), 2000).replace("\n", "\\n").replace("\t", "\\t")
    texts = {each.whole_text for each in root.find("code", "td", "dt")}
    assert shown in texts
    assert re.sub(r"`([^`\n]+)`", r"\1", cut(printable(name), 2000)) in {
        each.whole_text for each in root.find("td")
    }


def test_all_hostile_names_at_once() -> None:
    check_page(write_html(report_of(*HOSTILE, verdict=" ".join(HOSTILE))))


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 4000])
def test_ten_thousand_findings_are_cut_and_counted(length: int) -> None:
    rows = tuple((Code("FM012"), Name(f"{'<' * length}{number}")) for number in range(10_000))
    table = Table("Findings", ("code", "about"), rows)
    page = write_html(Report("t", "v", "bad", (table, table), (), "c", ""))
    root = check_page(page)
    shown = len(root.find("table")[0].find("tr")) - 1
    assert 3 <= shown <= 1000
    assert page.count(f"and {10_000 - shown:,} more, which `--json` writes") == 2
    assert re.search(r"Lists end after [\d,]+ rows", root.find("footer")[0].whole_text)


@pytest.mark.slow
def test_ten_thousand_units_are_cut_and_counted() -> None:
    page = write_html(report_of(*(f"blocks.{number}" for number in range(10_000))))
    check_page(page)
    assert page.count("more, which `--json` writes") == 6


def test_the_policy_allows_the_style_and_the_script_of_the_page_alone() -> None:
    root = check_page(write_html(report_of("a")))
    (policy,) = (
        each.attributes["content"]
        for each in root.find("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    style, script = root.find("style")[0].text, root.find("script")[0].text
    allowed = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{allowed[0]}'; script-src 'sha256-{allowed[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert style == (FOLDER / "page.css").read_text()
    assert script == (FOLDER / "page.js").read_text()
    assert not re.search(r"innerHTML|eval|document\.write|insertAdjacentHTML|https?:", script)
    assert not re.search(r"url\(|@import|https?:", style)


def test_no_link_leads_to_anything_but_https() -> None:
    with pytest.raises(ValueError, match="no address of https"):
        Link("x", "javascript:alert(1)")


def test_keys_of_addresses_are_not_shown() -> None:
    page = unescape(
        write_html(report_of("https://me:secret@host/a?X-Amz-Signature=secret", "s3://secret@b/c"))
    )
    assert "secret" not in page
    assert without_secrets("https://host/a") in page.replace("…@", "").replace("?…", "")


def palettes() -> dict[str, dict[str, str]]:
    style = (FOLDER / "page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark, paper = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks)
    return {"light": light, "dark": light | dark, "paper": light | paper}


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2, 1.4.3."""
    lights = sorted(_luminance(each) for each in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark", "paper"])
def test_colours_can_be_told_apart(scheme: str) -> None:
    colours = palettes()[scheme]
    grounds = dict.fromkeys(("text", "quiet", "link"), ("ground", "raised"))
    grounds |= {name: ("ground", f"{name}-ground") for name in ("good", "warning", "bad")}
    for name, below in grounds.items():
        for ground in below:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("control", "line0", "line1", "line2"):
        assert contrast(colours[name], colours["ground"]) >= 3, name
    assert contrast("#777777", "#ffffff") < 4.5


def test_what_the_page_is_made_of_is_shipped() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    found = re.search(
        r"^\[tool\.setuptools\.package-data\]\nfsdp_migrate = (\[.*\])$", declared, re.MULTILINE
    )
    assert found
    patterns = re.findall(r'"(.*?)"', found.group(1))
    package = ROOT / "fsdp_migrate"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    data = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert data == shipped
    assert FOLDER / "page.html.jinja" in shipped
