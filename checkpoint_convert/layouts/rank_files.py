"""Which files of a folder are those of ranks, and which of them belong together. Names only."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.parts import find_parts
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.checkpoint_convert.keys import Path
    from fsdp_migrate.checkpoint_convert.metadata import Entry


# rank0.pt, ep0-ba2-rank0.pt, model_world_size_2_rank_0.pt, model_final.rank_0.pth
_RANK_FILE: Final = re.compile(
    r"^(?P<head>(?:.*[_\-.])?)rank[_\-]?(?P<rank>\d{1,7})(?P<tail>\.(?:pt|pth|bin|ckpt))$"
)
_WORLD_SIZE: Final = re.compile(r"world_size_(\d{1,7})")
_NO_WORD: Final = re.compile(r"world_size_\d+|[_\-.]+$")


@dataclass(frozen=True)
class RankFamily:
    """Files that differ in the rank only.

    Attributes:
        stem: Their name, with ``*`` for the rank.
        files: The file of each rank, from 0 on.
    """

    stem: str
    files: Mapping[int, str]

    @property
    def word(self) -> str:
        """Return what their name says beside numbers, or the folder's, or nothing.

        Example:
            >>> RankFamily("actor/extra_state_world_size_2_rank_*.pt", {}).word
            'extra_state'
            >>> RankFamily("train/rank*.pt", {}).word
            'train'
        """
        folder, _, name = self.stem.rpartition("/")
        head = name.partition("rank")[0]
        while (shorter := _NO_WORD.sub("", head)) != head:
            head = shorter
        return head or folder.rpartition("/")[2]


def rank_of(name: str) -> int | None:
    """Return the rank that a file's name ends with, or None.

    Example:
        >>> rank_of("model_world_size_8_rank_3.pt"), rank_of("a/rank12.pth"), rank_of("frank1.pt")
        (3, 12, None)
    """
    match = _RANK_FILE.match(name.rpartition("/")[2])
    return None if match is None else int(match["rank"])


def find_families(names: Iterable[str], *, where: str) -> list[RankFamily]:
    """Return the families among the files of a folder.

    Args:
        names: The files.
        where: The folder, for messages.

    Raises:
        CheckpointNotFoundError: The file of a rank is missing.
        CheckpointFormatError: Two files are of one rank.
    """
    found: dict[str, dict[int, str]] = {}
    for name in names:
        folder, slash, base = name.rpartition("/")
        match = _RANK_FILE.match(base)
        if match is None:
            continue
        stem = f"{folder}{slash}{match['head']}rank*{match['tail']}"
        members = found.setdefault(stem, {})
        rank = int(match["rank"])
        if rank in members:
            msg = f"{where!r} holds two files of rank {rank}: `{members[rank]}` and `{name}`."
            raise CheckpointFormatError(msg, path=where)
        members[rank] = name
    return [_checked(stem, members, where) for stem, members in found.items()]


def _checked(stem: str, members: Mapping[int, str], where: str) -> RankFamily:
    told = _WORLD_SIZE.search(stem)
    count = max(int(told[1]) if told else 0, max(members) + 1)
    missing = list(itertools.islice((rank for rank in range(count) if rank not in members), 9))
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        msg = (
            f"{where!r} holds `{stem}` of {len(members)} ranks, expected {count}: those of rank {shown} are "
            "missing. Each rank saved a part of every tensor, so all of them are needed."
        )
        raise CheckpointNotFoundError(msg, path=f"{where}/{stem.replace('*', str(missing[0]))}")
    return RankFamily(stem, {rank: members[rank] for rank in range(count)})


def family_prefix(family: RankFamily, entries: Mapping[str, Entry], *, alone: bool) -> Path:
    """Return the path under which what a family holds stands beside what others hold.

    A bare model goes to ``model`` and a bare optimizer to ``optimizer``; what names them itself keeps its
    own names, and the rest goes under the name of the files.

    Args:
        family: The files.
        entries: What they hold.
        alone: Whether it is the only family.
    """
    parts = [part for part in find_parts(entries) if part.kind != "other"]
    for part in parts:
        if not part.prefix:
            return ("model",) if part.kind == "model" else ("optimizer",)
    return () if parts or alone or not family.word else (family.word,)
