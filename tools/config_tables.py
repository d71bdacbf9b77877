"""Writes what becomes of every key of every framework into docs/configs.md, from the tables of the adapters.

With ``--check`` it writes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS  # noqa: E402
from tools.page_parts import write_parts  # noqa: E402


PAGE = ROOT / "docs" / "configs.md"


def render_tables() -> str:
    """Return one table for each framework, as Markdown."""
    parts = []
    for adapter in ADAPTERS.values():
        rows = [f"### {adapter.title}", "", "| key | becomes |", "|---|---|"]
        for key in adapter.keys:
            names = ", ".join(f"`{name}`" for name in (key.name, *key.aliases))
            rows.append(f"| {names} | {key.becomes} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    return write_parts(PAGE, Path(__file__).name, {"keys": render_tables()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
