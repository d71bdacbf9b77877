"""Writes what becomes of every key of every stack into docs/configs.md, from the tables of the adapters.

With ``--check`` it writes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS


PAGE = Path(__file__).resolve().parent.parent / "docs" / "configs.md"
BEGIN, END = "<!-- keys: written by tools/config_tables.py -->", "<!-- end of keys -->"


def render_tables() -> str:
    """Return one table for each stack, as Markdown."""
    parts = []
    for adapter in ADAPTERS.values():
        rows = [f"### {adapter.title}", "", "| key | becomes |", "|---|---|"]
        for key in adapter.keys:
            names = ", ".join(f"`{name}`" for name in (key.name, *key.aliases))
            rows.append(f"| {names} | {key.becomes} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def replace_tables(page: str) -> str:
    """Return the page with the tables that stand between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_tables()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    page = PAGE.read_text()
    current = replace_tables(page)
    if "--check" in arguments:
        return int(page != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
