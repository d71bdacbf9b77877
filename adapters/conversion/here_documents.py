"""Here-documents of a script: settings that it writes to a file, and commands for another shell."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.shell import HereDocument, here_documents


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_SETTINGS = re.compile(r"^[ \t]*[\"']?fsdp(?:_\w+)?[\"']?\s*:", re.MULTILINE)
_LAUNCHES = re.compile(
    r"--(?:use[-_])?fsdp\b|--fsdp[-_]|--config_file\b|\baccelerate(?:\s+|-)launch\b|\btorchrun\b"
    r"|torch\.distributed\.(?:run|launch)\b|\.py\b"
)
_FLAG = re.compile(r"--(?:use[-_])?fsdp\b|--fsdp[-_]")
_SHOWN = re.compile(r"(?:.*[;{]\s*)?\s*cat\s*(?:>&2\s*)?(?:;.*)?\Z")
# What a shell does not run: it is Python's, or goes into a file of another kind.
_NO_SHELL = re.compile(
    r"\bpython[\d.]*\s+(?:-u\s+)?(?:-\s*)?\Z"
    r"|\.(?:py|json|ya?ml|toml|cfg|ini|md|txt|html)\b[\"']?\s*(?:>|\||\Z)|\bkubectl\b"
)
_KEYS = re.compile(r"^(?:[\w-]+:(?:\s|$)|\{)", re.MULTILINE)


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
    lines = [each.line for each in found if _is_to_be_read(text, each)]
    if not lines:
        return ""
    what = "here-document" if len(lines) == 1 else "here-documents"
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    holds = "holds" if len(lines) == 1 else "hold"
    return (
        f"The {what} in {where} {holds} FSDP settings, which are not read: convert the file that the script "
        "writes, and put the outcome there."
    )


def opened(text: str) -> str:
    r"""Return a script with the commands that stand in its here-documents as its own, each at its place.

    Example:
        >>> opened("sbatch <<E\naccelerate launch --use_fsdp t.py\nE\n").split()
        ['sbatch', 'accelerate', 'launch', '--use_fsdp', 't.py']
    """
    for here in _with_commands(text):
        inner = _unescaped(text, here)
        sign, last = here.sign, (text.find("\n", here.end) + 1 or len(text) + 1) - 1
        text = "".join(
            [
                text[: sign[0]],
                " " * (sign[1] - sign[0]),
                text[sign[1] : here.start],
                inner,
                " " * (last - here.end),
                text[last:],
            ]
        )
    return text


def without_shown(text: str) -> str:
    r"""Return a script without the here-documents that it prints: nothing runs them.

    Example:
        >>> without_shown("cat <<E\nuse --fsdp\nE\nrun\n")
        'cat <<E\nE\nrun\n'
    """
    shown = [here for here in here_documents(text) if _SHOWN.match(_asking(text, here))]
    for here in reversed(shown):
        text = text[: here.start] + text[here.end :]
    return text


def escaping(text: str) -> list[tuple[int, int]]:
    r"""Return where commands stand in which a variable without a backslash is this script's, not theirs.

    Example:
        >>> escaping("sbatch <<E\ntorchrun t.py \\$A\nE\n"), escaping("sbatch <<'E'\ntorchrun t.py $A\nE\n")
        ([(11, 29)], [])
    """
    found = ((here.start, here.end) for here in _with_commands(text) if not here.is_quoted)
    return [(start, end) for start, end in found if "\\$" in text[start:end]]


def _is_to_be_read(text: str, here: HereDocument) -> bool:
    """Tell whether a here-document has settings, or flags in what is no script: a manifest, for one."""
    inner = text[here.start : here.end]
    is_manifest = _FLAG.search(inner) is not None and _KEYS.search(inner) is not None
    return holds_settings(inner) or (is_manifest and not _SHOWN.match(_asking(text, here)))


def _with_commands(text: str) -> Iterator[HereDocument]:
    """Yield the here-documents that a shell runs, as far as they launch anything."""
    if "<<" not in text:
        return
    for here in here_documents(text):
        inner = text[here.start : here.end]
        asks = _asking(text, here)
        if not _LAUNCHES.search(inner) or holds_settings(inner):
            continue
        if _NO_SHELL.search(asks) or _SHOWN.match(asks):
            continue
        if not _KEYS.search(inner) and _is_closed(_unescaped(text, here)):
            yield here


def _asking(text: str, here: HereDocument) -> str:
    """Return the line that asks for a here-document, without the sign."""
    begin = text.rfind("\n", 0, here.sign[0]) + 1
    return f"{text[begin : here.sign[0]]} {text[here.sign[1] : here.start].partition(chr(10))[0]}"


def _unescaped(text: str, here: HereDocument) -> str:
    """Return what a here-document holds, with the ends of lines that go on as the later shell has them."""
    inner = text[here.start : here.end]
    return inner if here.is_quoted else inner.replace("\\\\\n", " \\\n")


def _is_closed(inner: str) -> bool:
    """Tell whether each quote is closed: an apostrophe of a sentence opens one for a shell."""
    try:
        shlex.split(inner, comments=True)
    except ValueError:
        return False
    return True
