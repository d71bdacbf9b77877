"""Writes the codes of findings and their explanations into docs/findings.md: run it after a change of one.

With ``--check`` it writes nothing and exits with 1 if the table is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_migrate.explanations import EXPLANATIONS
from fsdp_migrate.finding_codes import FINDING_CODES


PAGE = Path(__file__).resolve().parent.parent / "docs" / "findings.md"
BEGIN, END = "<!-- codes: written by tools/findings_table.py -->", "<!-- end of codes -->"


def render_table() -> str:
    """Return the table of codes, and what explains each, as Markdown."""
    rows = ["| code | fidelity | what it says |", "|---|---|---|"]
    rows += [f"| {code} | {row.fidelity} | {row.summary} |" for code, row in sorted(FINDING_CODES.items())]
    for each in sorted(EXPLANATIONS.values(), key=lambda each: each.code):
        rows += ["", f"### {each.code}", "", each.means, "", each.why, "", f"**What to do:** {each.action}"]
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
