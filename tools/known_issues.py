"""Writes the table of known faults into docs/known-issues.md: run it after a change of one.

With ``--check`` it writes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fsdp_migrate.doctor import FAULTS  # noqa: E402
from fsdp_migrate.doctor.known import HARMS  # noqa: E402
from tools.page_parts import write_parts  # noqa: E402


PAGE = ROOT / "docs" / "known-issues.md"
HANDLED = "; `prepare_fully_shard` takes care of it"
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
                f"**Harm:** {HARMS[fault.harm]}{HANDLED if fault.is_handled else ''}.",
                "",
                f"**What to do:** {fault.action}",
                "",
                f"Versions: {fault.versions}. Source: {where}, looked up {fault.looked_up}; {tested}.",
                "",
            ]
    return "\n".join(lines).rstrip()


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    return write_parts(PAGE, Path(__file__).name, {"faults": render_faults()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
