"""Writes pages to look at: ``python -m tests.report.pages FOLDER``. `make test-pages` tries them."""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_migrate.report.html import write_html
from tests.report.samples import HOSTILE, report_of


PAGES = {
    "plain": report_of(*(f"model.layers.{number}.weight" for number in range(40))),
    "hostile": report_of(*HOSTILE, verdict=" ".join(HOSTILE)),
    "many": report_of(*(f"model.layers.{number}.self_attention.weight" for number in range(10_000))),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in PAGES.items():
        (folder / f"{name}.html").write_text(write_html(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
