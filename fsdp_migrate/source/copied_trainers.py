"""A copy of Hugging Face's Trainer in a project: it shards by itself, by the flags of its own version.

`rewrite` turns it, and then it reads the flags that it read before. Converted, they are for transformers 5
and later, in which the copy has no part.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import listed
from fsdp_migrate.source.files import read_source
from fsdp_migrate.source.next_step import Step


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.source.launchers import LaunchFound


_TRAINER: Final = re.compile(r"^class \w*Trainer\b", re.MULTILINE)
_READS: Final = re.compile(r"\bargs\.fsdp\b")
_PLACES: Final = 3
_EITHER: Final = (
    "Do one of two things. {} is a copy of Hugging Face's Trainer that shards by itself: `rewrite` turns it, "
    "and it reads the flags of {} as they are, so leave them. Or take the copy out, and run the Trainer of "
    "transformers 5.0 or later: convert the flags then, which the copy's parser stops at."
)


def copied_trainers(paths: Iterable[str]) -> list[str]:
    """Return the files, of some that shard, in which a Trainer reads ``args.fsdp`` itself.

    Example:
        >>> copied_trainers(["fsdp_migrate/source/files.py"])
        []
    """
    return [path for path in dict.fromkeys(paths) if _is_copy(path)]


def _is_copy(path: str) -> bool:
    try:
        text = read_source(Path(path))
    except FSDPMigrateError:
        return False
    return _TRAINER.search(text) is not None and _READS.search(text) is not None


def left_to_copies(
    sharding: Iterable[str], launches: Sequence[LaunchFound]
) -> tuple[list[Step], list[LaunchFound]]:
    """Return what to do about launch lines that a copy of the Trainer reads, and the other launch lines.

    Args:
        sharding: The files whose models `rewrite` has sharded by FSDP2.
        launches: The launch lines that were found.

    Example:
        >>> left_to_copies([], [])
        ([], [])
    """
    theirs = [each for each in launches if each.framework == "hf" and each.state == "changes"]
    copies = copied_trainers(sharding) if theirs else []
    if not copies:
        return [], list(launches)
    places = listed((each.place for each in theirs), _PLACES)
    commands = (f"fsdp-migrate config {shlex.quote(path)}" for path in dict.fromkeys(e.path for e in theirs))
    step = Step(_EITHER.format(listed(copies, _PLACES), places), tuple(commands))
    return [step], [each for each in launches if each not in theirs]
