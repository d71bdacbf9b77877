"""What ``fsdp-migrate rewrite`` left to a person, looked for when a run starts rather than when it fails.

A context of FSDP1 that is left fails at the first save, hours after the start, with ``KeyError: None``.
So the comments that stand in the modules of a run stop it when its model is sharded.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import SourceError
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import counted, in_lines
from fsdp_migrate.left_comments import MARK, comments_in, stops_runs


if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_SHOWN = 8


@dataclass
class _LookedAt:
    """What of ``sys.modules``, which keeps their order, was looked at: its first ``number`` modules."""

    number: int = 0
    last: tuple[str, int] | None = None
    """The last of them and its identity: another may take its name."""
    own: dict[str, Path] = field(default_factory=dict)
    """The file of each of them that is not installed."""


_looked_at = _LookedAt()


def refuse_unsettled() -> None:
    """Stop a run whose modules hold uses of FSDP1 that ``rewrite`` left to a person.

    The modules that are loaded are read, but for installed ones. A comment that is deleted counts as settled.

    Raises:
        SourceError: There is such a use; it says where each stands.
    """
    found = [(path, line, code) for path in _own_files() for line, code in _unsettled_when_loaded(path)]
    if not found:
        return
    shown = in_lines(
        (f"{path}:{line} {code} {FINDING_CODES[code].summary}" for path, line, code in found), _MOST_SHOWN
    )
    msg = (
        f"`fsdp-migrate rewrite` left {counted(len(found), 'use')} of FSDP1 to you, which would fail later "
        f"in this run:\n{shown}\nDo what each comment says, and delete it. "
        f"`fsdp-migrate explain {found[0][2]}` says what to do."
    )
    raise SourceError(msg, path=found[0][0])


@functools.cache
def _unsettled_when_loaded(path: Path) -> tuple[tuple[int, str], ...]:
    # A file that is edited after its module was loaded changes nothing in this process.
    return tuple(unsettled_in(path))


def unsettled_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the code of each comment that ``rewrite`` left above what is to be settled."""
    try:
        data = path.read_bytes()
        # Nearly every file holds none, and is not decoded to learn that.
        text = data.decode() if f"{MARK}FM".encode() in data else ""
    except (OSError, UnicodeDecodeError):
        return
    yield from ((line, code) for line, code in comments_in(text) if stops_runs(code))


def _own_files() -> list[Path]:
    """Return the files of the modules that are loaded, but for those that are installed."""
    # Thousands are loaded, and a model is sharded often. To look at each of them again takes time, and
    # copies the memory that a forked process shares.
    number = len(sys.modules)
    names = list(islice(reversed(sys.modules), max(number - _looked_at.number, 0) + 1))
    if number < _looked_at.number or _named(names[-1]) != _looked_at.last:
        _looked_at.own.clear()
        names = list(reversed(sys.modules))
    for name in reversed(names):
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(_installed()):
            _looked_at.own[name] = Path(path)
    _looked_at.number, _looked_at.last = number, _named(names[0])
    return list(dict.fromkeys(_looked_at.own.values()))


def _named(name: str) -> tuple[str, int]:
    return name, id(sys.modules.get(name))


@functools.cache
def _installed() -> tuple[str, ...]:
    places = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    own = str(Path(__file__).resolve().parent.parent)
    return tuple({f"{Path(place)}/" for place in places} | {f"{own}/"})
