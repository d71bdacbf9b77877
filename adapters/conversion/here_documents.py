"""Here-documents in which a script writes FSDP settings to a file."""

from __future__ import annotations

import re

from fsdp_migrate.adapters.conversion.shell import heredocs_of


_SETTINGS = re.compile(r"^\s*[\"']?fsdp(?:_\w+)?[\"']?\s*:", re.MULTILINE)


def settings_written(text: str) -> str:
    r"""Say which here-documents of a script hold FSDP settings; nothing where none does.

    Example:
        >>> settings_written("cat > c.yaml <<E\nfsdp_config:\n  a: 1\nE\n")[:47]
        'The here-document in line 1 holds FSDP settings'
    """
    lines = [line for line, inner in heredocs_of(text) if _SETTINGS.search(inner)]
    if not lines:
        return ""
    what = "here-document" if len(lines) == 1 else "here-documents"
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    holds = "holds" if len(lines) == 1 else "hold"
    return (
        f"The {what} in {where} {holds} FSDP settings, which are not read: convert the file that the script "
        "writes, and put the outcome there."
    )
