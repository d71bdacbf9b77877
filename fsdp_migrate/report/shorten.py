"""What makes a report fit to be shown: harmless characters, no secrets, texts and lists that end."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Commands, Name, Node
from fsdp_migrate.visible import printable


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.report.model import Report

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """How many rows a list has at most, and how many characters a text."""

    rows: int
    characters: int

    @property
    def words(self) -> str:
        """What a reader is told of them."""
        rows, characters = counted(self.rows, "row"), counted(self.characters, "character")
        return f"Lists end after {rows}, and texts longer than {characters} are cut (…)."


# From the most that is pleasant to read down to what fits whatever the names are.
_LIMITS = tuple(
    Limits(rows, characters)
    for rows, characters in (
        (1000, 2000),
        (1000, 400),
        (500, 200),
        (200, 120),
        (100, 120),
        (50, 120),
        (20, 100),
        (8, 60),
        (3, 30),
    )
)
_BREAKS = {ord("\n"): "\\n", ord("\t"): "\\t"}
_VERDICT = 300
_NOT_SHOWN = frozenset({"url", "tone", "numbers"})
_WORDS = re.compile(r"([\s'\"`]+)")


def fit(report: Report, write: Callable[[Report, Limits], str], *, most_bytes: int) -> str:
    """Return what ``write`` makes of a report, with the longest lists and texts for which there is room.

    Args:
        report: The report, whole.
        write: Makes a text of a report that was shortened.
        most_bytes: How long that may be, in UTF-8.
    """
    text = ""
    report = replace(report, verdict=cut(report.verdict, _VERDICT))
    for limits in _LIMITS:
        text = write(shorten(report, limits), limits)
        if len(text.encode()) <= most_bytes:
            break
    return text


def shorten(value: T, limits: Limits) -> T:
    r"""Return a report, or a part of one, with harmless texts, and no list or text longer than the limits.

    Example:
        >>> from fsdp_migrate.report.model import Name, Notes
        >>> shorten(Notes("Notes", ("a\u202eb", "2", "3")), Limits(2, 20))
        Notes(title='Notes', rows=('a\\u202eb', '2'), more=1)
        >>> shorten(Name("s3://key:secret@bucket/" + "x" * 40), Limits(2, 20)).text
        's3://…@bu…xxxxxxxxxx'
    """
    return _shortened(value, limits)  # type: ignore[no-any-return]


def _shortened(value: Any, limits: Limits) -> Any:
    if isinstance(value, str):
        value = cut(value, 4 * limits.characters)  # what is longer by far need not be looked through
        return cut(without_secrets(printable(value)), limits.characters)
    if isinstance(value, (Name, Node, Commands)):
        value = _in_one_line(value)
    if isinstance(value, tuple):
        return tuple(_shortened(each, limits) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {each.name: getattr(value, each.name) for each in fields(value) if each.name not in _NOT_SHOWN}
    if "rows" in changed:
        rows = changed["rows"]
        changed["rows"] = rows[: limits.rows]
        changed["more"] += max(0, len(rows) - limits.rows)
    return replace(value, **{name: _shortened(each, limits) for name, each in changed.items()})


def _in_one_line(value: Name | Node | Commands) -> Name | Node | Commands:
    """Return a name or commands in which a line end shows: every character of them counts."""
    match value:
        case Name():
            return replace(value, text=value.text.translate(_BREAKS))
        case Node():
            return replace(value, name=value.name.translate(_BREAKS))
        case Commands():
            return replace(value, rows=tuple(row.translate(_BREAKS) for row in value.rows))


def without_secrets(text: str) -> str:
    """Return a text without the keys and signatures that addresses hold: a report is shown around.

    Example:
        >>> without_secrets("load https://me:pass@host/a?sig=abc&x=1 and train.py?")
        'load https://…@host/a?… and train.py?'
    """
    if "://" not in text:
        return text
    return "".join(_address_alone(word) if "://" in word else word for word in _WORDS.split(text))


def _address_alone(word: str) -> str:
    """Leave who asks (``key:secret@``) and what is asked (``?signature``) out of the addresses in a word."""
    start = word.index("://")
    address, mark, query = word[start:].partition("?")
    shown = "://".join(_host_and_path(part) for part in address.split("://"))
    return f"{word[:start]}{shown}{mark}{'…' * bool(query)}"


def _host_and_path(part: str) -> str:
    host, slash, path = part.partition("/")
    return f"{'…@' * ('@' in host)}{host.rpartition('@')[2]}{slash}{path}"


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters; the middle goes, for names differ at their ends.

    Example:
        >>> cut("model.layers.0.weight", 11)
        'model…eight'
    """
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"
