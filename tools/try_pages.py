"""Tries reports in a real browser: ``try_pages.py FOLDER``, with pages that ``tests.report.pages`` wrote.

Sorts, filters, follows links, prints, switches the script off, and tries to run and to load what the page's
policy forbids. Leaves screenshots beside the pages: light, dark, on a phone, and printed as a PDF. Needs
playwright and a Chromium that is installed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect, sync_playwright


if TYPE_CHECKING:
    from collections.abc import Iterator


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE, NARROWEST = 1200, 390, 320
FORBIDDEN = """() => new Promise((done) => {
  const script = document.createElement("script");
  script.textContent = "window.ran = true";
  document.body.append(script);
  const picture = new Image();
  picture.onload = () => done([window.ran === true, true]);
  picture.onerror = () => done([window.ran === true, false]);
  picture.src = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";
})"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def main(folder: Path) -> int:
    """Try the pages of a folder; an assertion tells what does not hold."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"No browser is installed; looked for {', '.join(BROWSERS)}.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        print(f"Chromium {browser.version}")
        opened = Opened(browser, folder)
        try_sorting(opened)
        try_filter(opened)
        try_links_and_print(opened)
        try_policy(opened)
        try_without_script(opened)
        take_pictures(opened)
        browser.close()
    print(f"All held. The pictures are in {folder}")
    return 0


class Opened:
    """Opens pages, without a network; an error of a script, or a dialog, ends the program."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder

    def __call__(self, name: str, *, width: int = WIDE, **options: Any) -> Any:
        """Return a page in a context of its own."""
        context = self.browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
        page = context.new_page()
        page.on("pageerror", _fail)
        page.on("dialog", _fail)
        page.goto((self.folder / f"{name}.html").absolute().as_uri())
        return page


def _fail(what: object) -> None:
    raise AssertionError(what)


def try_sorting(opened: Opened) -> None:
    """Sort by numbers and by names, both ways, by mouse and keyboard."""
    table = opened("plain").locator("table.data").first
    number, name = table.locator("th").nth(3), table.locator("th").nth(0)
    number.locator("button").click()
    expect(number).to_have_attribute("aria-sort", "ascending")
    number.locator("button").press("Enter")
    expect(number).to_have_attribute("aria-sort", "descending")
    assert list(_column(table, 4)) == [str(count) for count in reversed(range(40))]
    name.locator("button").press("Space")
    assert list(_column(table, 1)) == [f"model.layers.{count}.weight" for count in range(40)]
    expect(table.locator("th[aria-sort]")).to_have_count(1)


def _column(table: Any, number: int) -> Iterator[str]:
    yield from table.locator(f"tbody tr:visible td:nth-child({number})").all_text_contents()


def try_filter(opened: Opened) -> None:
    """Search a table; a sort leaves what was searched for."""
    page = opened("plain")
    table, box = page.locator("table.data").first, page.get_by_label("Only rows with").first
    box.fill("LAYERS.1 fm012")
    assert len(list(_column(table, 1))) == 11
    assert page.locator("output").first.text_content() == "11 of 40"
    table.locator("th button").first.click()
    assert len(list(_column(table, 1))) == 11
    box.fill("no such row")
    assert list(_column(table, 1)) == []
    box.fill("")
    assert len(list(_column(table, 1))) == 40


def try_links_and_print(opened: Opened) -> None:
    """Follow a code to its meaning, see the focus, and print what is folded but for units."""
    page = opened("plain")
    page.locator("a.code").first.click()
    assert page.locator("details#FM012").evaluate("(each) => each.open")
    page.keyboard.press("Tab")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    closed = "main details:not([open])"
    before = page.locator(closed).count()
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.locator(closed).count() == page.locator(f".tree {closed.removeprefix('main ')}").count()
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.locator(closed).count() == before > 0


def try_policy(opened: Opened) -> None:
    """Names do nothing; a script and a picture that come in all the same neither run nor load."""
    for width in (WIDE, PHONE, NARROWEST):
        page = opened("hostile", width=width)
        assert page.locator("script").count() == 1
        assert page.locator("img, iframe, b, i").count() == 0
        assert page.evaluate(TOO_WIDE) == 0, width
        assert page.evaluate(FORBIDDEN) == [False, False]


def try_without_script(opened: Opened) -> None:
    """Everything is there without the script, and folds without it."""
    page = opened("plain", java_script_enabled=False)
    assert page.locator("table.data").first.locator("tbody tr:visible").count() == 40
    assert page.locator("th button, input").count() == 0
    folded = page.locator("section > details").first
    expect(folded.locator("table")).to_be_hidden()
    folded.locator("summary").click()
    expect(folded.locator("table")).to_be_visible()


def take_pictures(opened: Opened) -> None:
    """Leave pictures to look at; no page is wider than its window."""
    looks = {"light": ("light", WIDE), "dark": ("dark", WIDE), "phone": ("light", PHONE)}
    for name in ("plain", "hostile", "many"):
        for look, (scheme, width) in looks.items():
            page = opened(name, width=width, color_scheme=scheme)
            assert page.evaluate(TOO_WIDE) == 0, (name, look)
            page.screenshot(path=opened.folder / f"{name}-{look}.png", full_page=name != "many")
    opened("plain").pdf(path=opened.folder / "plain.pdf", format="A4")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
