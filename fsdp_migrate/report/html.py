"""A report as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.report.model import Badge, Code, Link, Name, Number
from fsdp_migrate.report.plot import draw
from fsdp_migrate.report.shorten import fit
from fsdp_migrate.report.texts import MEANINGS, REPEATED, SIGNS, explained, left_out, pieces
from fsdp_migrate.report.tree import nested


if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

    from fsdp_migrate.report.model import Cell, Report, Table
    from fsdp_migrate.report.shorten import Limits


GENERATOR = "fsdp-migrate"
"""What a page says that made it, by which it is known again."""

MOST_BYTES = 950_000
_FOLDER = Path(__file__).parent / "page"


def write_html(report: Report) -> str:
    """Return a page of less than 1 MB.

    Every text in it is escaped, also what looks like HTML already. A Content-Security-Policy lets the page
    load nothing, and run nothing but its own script, which sorts and filters tables. Without the script all
    is there to be read.

    Args:
        report: What the page is to say.

    Example:
        >>> from fsdp_migrate.report.model import Report
        >>> page = write_html(Report("verify", "The same.", "good", (), (), "fsdp-migrate verify <a>", ""))
        >>> page[:15], "<a>" in page, "&lt;a&gt;" in page
        ('<!doctype html>', False, True)
    """
    return fit(report, _fill, most_bytes=MOST_BYTES)


def _fill(report: Report, limits: Limits) -> str:
    template, style, script = _parts()
    page = template.render(
        report=report,
        sign=SIGNS[report.tone],
        explained=explained(report),
        limits=limits.words,
        version=version(GENERATOR),
        generator=GENERATOR,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        meanings=MEANINGS,
        repeated=REPEATED,
    )
    return page.strip() + "\n"


@functools.lru_cache(maxsize=1)
def _parts() -> tuple[jinja2.Template, Markup, Markup]:
    """Return the template, the style and the script; the last two are ours, and go in as they are."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(inline=_inline, cell=_cell, key=_sort_key, left_out=left_out)
    kind = attrgetter("__class__.__name__")
    environment.globals.update(draw=draw, nested=nested, kind=kind, widths_of=_widths)
    texts = (Markup((_FOLDER / name).read_text("utf-8")) for name in ("page.css", "page.js"))
    style, script = texts
    return environment.get_template("page.html.jinja"), style, script


def _hash(text: str) -> str:
    """Return what a Content-Security-Policy calls a text that it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _inline(text: str) -> Markup:
    """Escape a text, and mark what stands between backticks as code."""
    from markupsafe import Markup

    code, plain = Markup("<code>{}</code>"), Markup("{}")
    return Markup("").join((code if is_code else plain).format(part) for is_code, part in pieces(text))


def _cell(cell: Cell) -> Markup:
    """Escape a cell, and show it as what it is."""
    from markupsafe import Markup

    match cell:
        case Name(text):
            return Markup("<code>{}</code>").format(text)
        case Link(text, url):
            return Markup('<a href="{}" rel="noreferrer">{}</a>').format(url, text)
        case Code(text):
            return Markup('<a class="code" href="#{0}">{0}</a>').format(text)
        case Badge(text, tone):
            return Markup('<span class="badge {}">{}</span>').format(tone, text)
        case Number(_, shown):
            return Markup("{}").format(shown)
        case str():
            return _inline(cell)


def _widths(table: Table) -> list[str]:
    """Return how each column is set: numbers to the right, and what is long not too narrow."""
    return [
        "number" if column in table.numbers else _width([row[at] for row in table.rows])
        for at, column in enumerate(table.columns)
    ]


def _width(cells: list[Cell]) -> str:
    texts = (cell if isinstance(cell, str) else cell.text for cell in cells if not isinstance(cell, Number))
    longest = max(map(len, texts), default=0)
    return "wide" if longest > 40 else "middling" if longest > 12 else "narrow"


def _sort_key(cell: Any) -> str:
    """Return the number that a cell is sorted by, or nothing: by its text."""
    return repr(float(cell.value)) if isinstance(cell, Number) else ""
