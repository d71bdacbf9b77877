"""A report as Markdown for a pull request, as GitHub reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.report.model import Badge, Code, Facts, Link, Name, Notes, Number, Plot, Steps, Table, Tree
from fsdp_migrate.report.shorten import fit
from fsdp_migrate.report.texts import MEANINGS, REPEATED, SIGNS, explained, left_out, pieces


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.report.model import Cell, Report, Section
    from fsdp_migrate.report.shorten import Limits


FIRST_LINE = "<!-- a report of fsdp-migrate -->"
"""What such a text begins with, by which it is known again; it is not shown."""

MOST_BYTES = 60_000
"""GitHub takes a comment of 65,536 characters."""

_SHOWN_OPEN = 15
# What a code span may hold in a table: nothing that ends the span or the cell.
_PLAIN_CODE = re.compile(r"[\w ./:=,+()\[\]{}@#%'\"!?;^~*-]+", re.ASCII)
# What GitHub makes a link, a mention or a formula of, wherever it stands in a sentence.
_TELLING = re.compile(r"[^\s|<>]*(?:@|#\d|GH-\d|://|www\.|\$)[^\s|<>]*", re.IGNORECASE)


def write_markdown(report: Report) -> str:
    """Return a text of at most 60,000 bytes. Names in it are no Markdown or HTML, and mention nobody.

    Args:
        report: What the text is to say. A plot is told in words: GitHub draws no picture from a comment.

    Example:
        >>> from fsdp_migrate.report.model import Report
        >>> text = write_markdown(Report("verify", "Different: `a|b`.", "bad", (), (), "x", ""))
        >>> text.splitlines()[2]
        '## ✗ verify: Different: <code>a&#124;b</code>.'
    """
    return fit(report, _fill, most_bytes=MOST_BYTES)


def _fill(report: Report, limits: Limits) -> str:
    lines = [FIRST_LINE, "", f"## {SIGNS[report.tone]} {prose(f'{report.title}: {report.verdict}')}", ""]
    for section in report.sections:
        lines += [*_section(section), ""]
    if found := explained(report):
        lines += _folded(f"{MEANINGS}: {len(found)}", _meanings(report))
    lines += [f"### {REPEATED}", "", code(report.command), ""]
    lines += [prose(", ".join(f"{name} {number}" for name, number in report.versions)), ""]
    lines += [prose(f"{report.made} {limits.words} `--json` writes all.")]
    return "\n".join(lines).rstrip() + "\n"


def _meanings(report: Report) -> Iterator[str]:
    for each in explained(report):
        yield f"**{each.code}** {each.fidelity}: {prose(each.means)}  "
        yield f"Why: {prose(each.why)}  "
        yield f"What to do: {prose(each.action)}"
        yield ""


def _section(section: Section) -> Iterator[str]:
    match section:
        case Facts():
            yield from (f"### {prose(section.title)}", "", "| | |", "|---|---|")
            yield from (_row((name, value)) for name, value in section.rows)
            yield from _more(section.more)
        case Table():
            yield from _table(section)
        case Plot():
            yield from (f"### {prose(section.title)}", "", prose(section.says))
        case Tree():
            yield from _tree(section)
        case Steps():
            yield from (f"### {prose(section.title)}", "")
            for number, step in enumerate(section.rows, 1):
                yield f"{number}. {prose(step.text)}"
                yield from (f"   - {code(each)}" for each in step.commands.rows)
                yield from (f"   - {line}" for line in _more(step.commands.more) if line)
            yield from _more(section.more)
        case Notes():
            yield from (f"### {prose(section.title)}", "")
            yield from (f"- {prose(each)}" for each in section.rows)
            yield from _more(section.more)


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {prose(table.title)}", "")
    if table.intro:
        yield from (prose(table.intro), "")
    aligned = ("---:" if column in table.numbers else "---" for column in table.columns)
    lines = [_row(table.columns), f"|{'|'.join(aligned)}|", *map(_row, table.rows), *_more(table.more)]
    if table.folded or len(table.rows) > _SHOWN_OPEN:
        lines = list(_folded(f"{len(table.rows) + table.more:,} in all", lines))
    yield from lines


def _tree(tree: Tree) -> Iterator[str]:
    yield from (f"### {prose(tree.title)}", "")
    if tree.intro:
        yield from (prose(tree.intro), "")
    lines = []
    hidden: int | None = None
    for node in tree.rows:
        if hidden is not None and node.depth > hidden:
            continue
        hidden = node.depth if node.folded else None
        lines.append(f"{'  ' * node.depth}- {code(node.name)} {prose(_joined(node.about, node.size))}")
    lines += _more(tree.more)
    yield from _folded(f"{len(lines):,} lines", lines) if len(lines) > 2 * _SHOWN_OPEN else lines


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _folded(summary: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"<details><summary>{prose(summary)}</summary>", "", *lines, "", "</details>", "")


def _more(more: int) -> tuple[str, ...]:
    return ("", prose(left_out(more))) if more else ()


def _row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: Cell) -> str:
    match cell:
        case Name(text) | Code(text):
            return code(text)
        case Link(text, url):
            return f"[{prose(text)}]({url})"
        case Badge(text, _) | Number(_, text):
            return prose(text)
        case str():
            return prose(cell)


def prose(text: str) -> str:
    r"""Return a text in which nothing is Markdown or HTML but what stands between backticks, which is code.

    What GitHub would make a link, a mention or a formula of becomes code as well.

    Example:
        >>> prose("*a* <b> of @octocat in `c`")
        '\\*a\\* &lt;b\\> of `@octocat` in `c`'
    """
    parts = []
    for is_code, part in pieces(" ".join(text.split("\n"))):
        if is_code:
            parts.append(code(part))
            continue
        end = 0
        for found in _TELLING.finditer(part):
            parts += [_escaped(part[end : found.start()]), code(found.group())]
            end = found.end()
        parts.append(_escaped(part[end:]))
    return _BEGINS_A_BLOCK.sub(r"\1\\\2", "".join(parts).strip())


def code(text: str) -> str:
    """Return a text as code, whatever is in it; no cell of a table ends in it.

    Example:
        >>> code("model.0.weight"), code("a`b|<i>")
        ('`model.0.weight`', '<code>a&#96;b&#124;&#60;i&#62;</code>')
    """
    if not text.strip():
        return "<code>&nbsp;</code>" if text else "`(empty)`"
    text = text.replace("\n", " ")
    if _PLAIN_CODE.fullmatch(text) and text == text.strip():
        return f"`{text}`"
    inside = "".join(each if each.isalnum() or each in " ./" else f"&#{ord(each)};" for each in text)
    return f"<code>{inside}</code>"


_MARKS = re.compile(r"([\\`*_{}\[\]#~!|>])")
# A list: `- `, `+ `, `1. `, or the line under a heading.
_BEGINS_A_BLOCK = re.compile(r"^(\d*)([-+=]+(?=\s|$)|(?<=\d)[.)](?=\s|$))")


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
