"""Reads pages as a strict reader would: what is open is closed, and nothing is there that could do harm."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser


VOID = {"meta", "input", "br", "hr", "img", "link"}
DRAWN = {"line", "circle", "path", "polyline", "rect"}
RAW = {"script", "style"}
LANDMARKS = {"header", "nav", "main", "footer"}


@dataclass
class Element:
    """An element with what it holds."""

    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def children(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]

    @property
    def text(self) -> str:
        """What it says itself."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def whole_text(self) -> str:
        """What it says with all that is in it."""
        return "".join(part if isinstance(part, str) else part.whole_text for part in self.parts)

    def find(self, *tags: str) -> list[Element]:
        """Return every element of these kinds in it."""
        own = [self] if self.tag in tags else []
        return own + [found for child in self.children for found in child.find(*tags)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs)
        if tag not in VOID:
            self.open.append(self.open[-1].children[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in DRAWN:
            self.problems.append(f"<{tag}/> is no element without an end")
        self._begin(tag, attrs)

    def _begin(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.problems.append(f"<{tag}> has an attribute twice: {names}")
        element = Element(tag, {name: value or "" for name, value in attrs})
        if tag == "li" and self.open[-1].tag not in {"ul", "ol"}:
            self.problems.append(f"<li> in <{self.open[-1].tag}>")
        if tag in {"p", "div", "ul", "dl", "table", "details", "pre"} and self.open[-1].tag in {"p", "span"}:
            self.problems.append(f"<{tag}> in <{self.open[-1].tag}>")
        self.open[-1].parts.append(element)

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1].tag != tag:
            self.problems.append(f"</{tag}> where <{self.open[-1].tag}> is open")
        elif len(self.open) > 1:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read_page(page: str) -> Element:
    """Return the root of a page that is well formed."""
    assert page.startswith("<!doctype html>\n")
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.problems == []
    assert [each.tag for each in reader.open] == [""]
    (root,) = reader.open[0].children
    assert root.tag == "html"
    return root


def check_page(page: str) -> Element:
    """Return the root of a page that is well formed, harmless and can be used by everybody."""
    root = read_page(page)
    assert len(page.encode()) < 1_000_000
    assert root.attributes["lang"] == "en"
    assert root.find("title")[0].text.strip()
    _check_harmless(root)
    for tag in LANDMARKS:
        assert len(root.find(tag)) == 1, tag
    levels = [int(each.tag[1]) for each in root.find("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))
    every = _every(root)
    ids = [each.attributes["id"] for each in every if "id" in each.attributes]
    assert len(set(ids)) == len(ids)
    for each in every:
        named = each.attributes.get("aria-labelledby", "").split()
        assert set(named) <= set(ids), each
        link = each.attributes.get("href", "")
        assert not link.startswith("#") or link[1:] in ids, link
    assert {each.attributes.get("scope") for each in root.find("th")} <= {"col"}
    for table in root.find("table"):
        width = len(table.find("th"))
        assert {len(row.children) for row in table.find("tr")} == {width}
    return root


def _check_harmless(root: Element) -> None:
    assert root.find("iframe", "object", "embed", "link", "img", "form", "base", "b", "i") == []
    assert len(root.find("script")) == len(root.find("style")) == 1
    for each in _every(root):
        for name, value in each.attributes.items():
            assert not name.startswith("on"), each
            assert name not in {"style", "src", "srcdoc", "action"}, each
            if name in {"href", "xlink:href"}:
                assert each.tag == "a"
                assert re.match(r"https://github\.com/|#", value), value
    shown = "".join(each.text for each in _every(root) if each.tag not in RAW)
    assert shown.replace("\n", "").replace("\t", "").isprintable()


def _every(root: Element) -> list[Element]:
    return [root, *(found for child in root.children for found in _every(child))]
