"""Writes the table of finding codes into docs/findings.md: run it after a code is added or reworded.

With ``--check`` it writes nothing and exits with 1 if the table is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_migrate.findings import FINDING_CODES


PAGE = Path(__file__).resolve().parent.parent / "docs" / "findings.md"
BEGIN, END = "<!-- codes: written by tools/findings_table.py -->", "<!-- end of codes -->"


def render_table() -> str:
    """Return the table of codes as Markdown."""
    rows = ["| code | fidelity | what it says |", "|---|---|---|"]
    rows += [f"| {code} | {row.fidelity} | {row.summary} |" for code, row in sorted(FINDING_CODES.items())]
    return "\n".join(rows)


def replace_table(page: str) -> str:
    """Return the page with the table that stands between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_table()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    page = PAGE.read_text()
    current = replace_table(page)
    if "--check" in arguments:
        return int(page != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
