"""The options ``--html`` and ``--markdown``: where reports go, and that each is named once it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.screen import console, escape


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsdp_migrate.report.model import Report


@dataclass(frozen=True)
class Pages:
    """The files that were asked for."""

    html: Path | None
    markdown: Path | None

    def write(self, make: Callable[[], Report], *, aside: bool) -> None:
        """Write what was asked for, and name each file.

        Args:
            make: Makes the report; called only if a file was asked for.
            aside: Name the files on stderr, because stdout holds a document.

        Raises:
            OutputExistsError: There is something at a path that is no report.
            OutputError: A file cannot be written; nothing is left of it.
        """
        if self.html is None and self.markdown is None:
            return
        from fsdp_migrate.report.files import write_report
        from fsdp_migrate.report.html import write_html
        from fsdp_migrate.report.markdown import write_markdown

        report = make()
        for path, write in ((self.html, write_html), (self.markdown, write_markdown)):
            if path is not None:
                write_report(path, write(report))
                console(aside=aside).print(f"The report is in {escape(str(path))}", soft_wrap=True)


def wanted_pages(html: Path | None, markdown: Path | None) -> Pages:
    """Return the files that were asked for, once it is known that each can be written.

    Raises:
        OutputExistsError: There is something at a path that is no report.
        OutputError: There is no folder for it.
    """
    for path in (html, markdown):
        if path is not None:
            from fsdp_migrate.report.files import check_place

            check_place(path)
    return Pages(html, markdown)
