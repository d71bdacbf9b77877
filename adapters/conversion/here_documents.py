"""Here-documents in which a script writes FSDP settings to a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.shell import here_documents


if TYPE_CHECKING:
    from collections.abc import Collection


_SETTINGS = re.compile(r"^\s*[\"']?fsdp(?:_\w+)?[\"']?\s*:", re.MULTILINE)


def holds_settings(inner: str) -> bool:
    """Tell whether what a here-document holds has FSDP settings."""
    return _SETTINGS.search(inner) is not None


def settings_written(text: str, read: Collection[int] = ()) -> str:
    r"""Say which here-documents of a script hold FSDP settings; nothing where none does.

    ``read``: the lines that ask for those that were read.

    Example:
        >>> settings_written("cat > c.yaml <<E\nfsdp_config:\n  a: 1\nE\n")[:47]
        'The here-document in line 1 holds FSDP settings'
    """
    found = (each for each in here_documents(text) if each.line not in read)
    lines = [each.line for each in found if holds_settings(text[each.start : each.end])]
    if not lines:
        return ""
    what = "here-document" if len(lines) == 1 else "here-documents"
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    holds = "holds" if len(lines) == 1 else "hold"
    return (
        f"The {what} in {where} {holds} FSDP settings, which are not read: convert the file that the script "
        "writes, and put the outcome there."
    )
