"""Writes the codes of findings and their explanations into docs/findings.md: run it after a change of one.

With ``--check`` it writes nothing and exits with 1 if the table is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fsdp_migrate.explanations import EXPLANATIONS  # noqa: E402
from fsdp_migrate.finding_codes import FINDING_CODES  # noqa: E402
from tools.page_parts import write_parts  # noqa: E402


PAGE = ROOT / "docs" / "findings.md"


def render_table() -> str:
    """Return the table of codes, and what explains each, as Markdown."""
    rows = ["| code | fidelity | what it says |", "|---|---|---|"]
    rows += [f"| {code} | {row.fidelity} | {row.summary} |" for code, row in sorted(FINDING_CODES.items())]
    for each in sorted(EXPLANATIONS.values(), key=lambda each: each.code):
        rows += ["", f"### {each.code}", "", each.means, "", each.why, "", f"**What to do:** {each.action}"]
        rows[-1] = f"{rows[-1]} {each.comment}".rstrip()
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    return write_parts(PAGE, Path(__file__).name, {"codes": render_table()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
