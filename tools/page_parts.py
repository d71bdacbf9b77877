"""Parts of a page that are written from the code, between two marks that name the part and its tool."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_parts(page: Path, tool: str, parts: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Write or check the parts of a page; return the exit code.

    Args:
        page: The page.
        tool: The file in ``tools/`` that makes the parts.
        parts: The text of each, by its name.
        arguments: With ``--check`` nothing is written, and the code is 1 if the page is not up to date.
    """
    text = current = page.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- {name}: written by tools/{tool} -->", f"<!-- end of {name} -->"
        before, _, rest = current.partition(begin)
        current = f"{before}{begin}\n\n{part}\n\n{end}{rest.partition(end)[2]}"
    if "--check" in arguments:
        return int(text != current)
    page.write_text(current)
    return 0
