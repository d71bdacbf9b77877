"""Writes the table of known faults into docs/known-issues.md: run it after a change of one.

With ``--check`` it writes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fsdp_migrate.doctor import FAULTS


PAGE = Path(__file__).resolve().parent.parent / "docs" / "known-issues.md"
BEGIN, END = "<!-- faults: written by tools/known_issues.py -->", "<!-- end of faults -->"
TITLES = {
    "environment": "Seen in the environment",
    "config": "Seen in a config",
    "model": "Seen in a model",
    "checkpoint": "Seen in a checkpoint",
    "sources": "Seen in sources",
}


def render_faults() -> str:
    """Return all faults, by what they are seen in, as Markdown."""
    lines = []
    for looks_at, title in TITLES.items():
        lines += [f"## {title}", ""]
        for fault in (each for each in FAULTS if each.looks_at == looks_at):
            where = f"[{fault.link}]({fault.url})" if fault.url else "measured by us"
            tested = "a test makes it happen" if fault.reproduced else "not reproduced here"
            lines += [
                f"### {fault.name}",
                "",
                fault.says,
                "",
                f"**What to do:** {fault.action}",
                "",
                f"Versions: {fault.versions}. Source: {where}, looked up {fault.looked_up}; {tested}.",
                "",
            ]
    return "\n".join(lines).rstrip()


def replace_faults(page: str) -> str:
    """Return the page with what stands between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_faults()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    page = PAGE.read_text()
    current = replace_faults(page)
    if "--check" in arguments:
        return int(page != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
