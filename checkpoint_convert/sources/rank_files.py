"""Which files of a folder are those of ranks, and which of them belong together. Names only."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import find_parts
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry


_KINDS: Final = r"\.(?:pt|pth|bin|ckpt|th)"
# rank0.pt, ep0-ba2-rank0.pt, model_world_size_2_rank_0.pt, model_final.rank_0.pth, rank_0_model.pt,
# rank-00000-of-00002-model.pt; but not mp_rank_00_model_states.pt, whose tensors were cut by hand.
_RANK_FILE: Final = re.compile(
    r"^(?P<head>(?:.*(?<!mp)(?<!tp)(?<!pp)(?<!ep)[_\-.])?)rank[_\-]?(?P<rank>\d{1,7})"
    rf"(?P<of>-of-(?P<count>\d{{1,7}}))?(?P<tail>(?:[_\-.][^/]*?)?{_KINDS})$"
)
_RANK_FOLDER: Final = re.compile(
    rf"^(?P<head>(?:[^/]*/)*?(?:[^/]*[_\-.])?)rank[_\-]?(?P<rank>\d{{1,7}})(?P<tail>/[^/]*{_KINDS})$"
)
# Names that do not say whether they count ranks: optimizer.00000-of-00002.pth, checkpoint-shard0.pt, ...
_NUMBERED: Final = re.compile(
    rf"^(?P<head>.*?[_\-.]|)(?P<rank>\d{{1,7}})(?P<of>-of-(?P<count>\d{{1,7}}))(?P<tail>(?:[_\-.].*?)?{_KINDS})$"
)
_SHARD: Final = re.compile(rf"^(?P<head>(?:.*[_\-.])?shard[_\-]?)(?P<rank>\d{{1,7}})(?P<tail>{_KINDS})$")
# ... ckpt_0.pt, and checkpoint.th.1 beside checkpoint.th.
_COUNTED: Final = re.compile(rf"^(?P<head>.*?[_\-.]|)(?P<rank>\d{{1,7}})(?P<tail>{_KINDS})$")
_APPENDED: Final = re.compile(rf"^(?P<head>.*{_KINDS})(?:\.(?P<rank>\d{{1,7}}))?(?P<tail>)$")
# ... part0.pt, r0_state.pt: any number of a name.
_ANY_NUMBER: Final = re.compile(r"\d{1,7}")
_KIND: Final = re.compile(rf"{_KINDS}$")
_CUT: Final = re.compile(r"(?:mp|tp|pp|ep)_?rank")
_WORLD_SIZE: Final = re.compile(r"world_size_(\d{1,7})|-of-(\d{1,7})")
_NO_WORD: Final = re.compile(r"world_size_\d+|-of-\d+|^\d+$|^[_\-.]+|[_\-.]+$")


@dataclass(frozen=True)
class RankFamily:
    """Files that differ in the rank only.

    Attributes:
        stem: Their name, with ``*`` for the rank.
        files: The file of each rank, from 0 on.
        is_explicit: Whether their names say what the number counts: ranks, or pieces of something.
    """

    stem: str
    files: Mapping[int, str]
    is_explicit: bool = True

    @property
    def says_count(self) -> bool:
        """Tell whether their name says of how many ranks they are."""
        return _count_in(self.stem) > 0

    @property
    def word(self) -> str:
        """Return what their name says beside numbers, or the folder's, or nothing.

        Example:
            >>> RankFamily("actor/extra_state_world_size_2_rank_*.pt", {}).word
            'extra_state'
            >>> RankFamily("train/rank*.pt", {}).word
            'train'
            >>> RankFamily("rank*-of-00002-model.pt", {}).word
            'model'
        """
        folder, _, name = self.stem.rpartition("/")
        head, _, tail = name.partition("*")
        words = [re.sub(r"rank[_\-]?$", "", head), tail.rpartition(".")[0]]
        for number in range(2):
            while (shorter := _NO_WORD.sub("", words[number])) != words[number]:
                words[number] = shorter
        return words[0] or words[1] or folder.rpartition("/")[2]


def rank_of(name: str) -> int | None:
    """Return the rank that a file's name ends with, or None.

    Example:
        >>> rank_of("model_world_size_8_rank_3.pt"), rank_of("a/rank12.pth"), rank_of("frank1.pt")
        (3, 12, None)
    """
    match = _RANK_FILE.match(name.rpartition("/")[2])
    return None if match is None else int(match["rank"])


def stem_of(name: str) -> str | None:
    """Return a rank's file with ``*`` for the rank, or None if its name says nothing of ranks.

    Example:
        >>> stem_of("actor/model_world_size_8_rank_3.pt"), stem_of("train/rank3/state.pt"), stem_of("a.pt")
        ('actor/model_world_size_8_rank*.pt', 'train/rank*/state.pt', None)
    """
    found = _stem_and_rank(name)
    return None if found is None else found[0]


def _stem_and_rank(name: str) -> tuple[str, int] | None:
    folder, slash, base = name.rpartition("/")
    match = _RANK_FILE.match(base)
    if match is not None:
        stem = f"{folder}{slash}{match['head']}rank*{match['of'] or ''}{match['tail']}"
        return stem, int(match["rank"])
    match = _RANK_FOLDER.match(name)
    return None if match is None else (f"{match['head']}rank*{match['tail']}", int(match["rank"]))


def find_families(names: Iterable[str], *, where: str) -> list[RankFamily]:
    """Return the families among the files of a folder whose names say that they are of ranks.

    Args:
        names: The files.
        where: The folder, for messages.

    Raises:
        CheckpointNotFoundError: The file of a rank is missing.
        CheckpointFormatError: Two files are of one rank.
    """
    found: dict[str, dict[int, str]] = {}
    for name in names:
        its = _stem_and_rank(name)
        if its is None:
            continue
        stem, rank = its
        members = found.setdefault(stem, {})
        if rank in members:
            msg = f"{where!r} holds two files of rank {rank}: `{members[rank]}` and `{name}`."
            raise CheckpointFormatError(msg, path=where)
        members[rank] = name
    return [_checked(stem, members, where) for stem, members in found.items()]


def find_counted(names: Iterable[str]) -> list[RankFamily]:
    """Return the files that differ in a number from 0 on, which may be that of a rank or of anything else.

    Only what they hold tells. Those of ``find_families``, and what is incomplete, are none of them.

    Example:
        >>> names = ["optimizer.00000-of-00002.pth", "optimizer.00001-of-00002.pth", "b_1.pt", "b_2.pt"]
        >>> [(family.stem, family.is_explicit) for family in find_counted([*names, "c.th", "c.th.1"])]
        [('optimizer.*-of-00002.pth', True), ('c.th*', False)]
    """
    found: dict[tuple[str, bool], dict[int, str]] = {}
    own = [name for name in names if "/" not in name and rank_of(name) is None]
    # Where `x.1` is there, `x` is rank 0's, and no number in its own name counts.
    firsts = {match["head"] for name in own if (match := _APPENDED.match(name)) and match["rank"]}
    for name in own:
        match = _NUMBERED.match(name) or _SHARD.match(name)
        is_explicit = match is not None
        counted = None if name in firsts else _COUNTED.match(name)
        match = match or counted or _APPENDED.match(name)
        if match is not None:
            of = match.groupdict().get("of") or ""
            stem = f"{match['head']}*{of}{match['tail']}"
            found.setdefault((stem, is_explicit), {}).setdefault(int(match["rank"] or 0), name)
    families: list[RankFamily] = []
    for (stem, is_explicit), members in found.items():
        count = _count_in(stem) or len(members)
        if count > 1 and set(members) == set(range(count)):
            families.append(RankFamily(stem, {rank: members[rank] for rank in range(count)}, is_explicit))
    return families


def find_numbered(names: Collection[str]) -> list[RankFamily]:
    """Return the files that differ in any number of their names from 0 on, and are none of ``find_counted``.

    The last number that does so counts: ``step5-r0.pt``. What they hold has to tell, more than of the others.

    Example:
        >>> names = ["part0.pt", "part1.pt", "r0_s5.pt", "r1_s5.pt", "ba4.pt", "ba8.pt"]
        >>> [family.stem for family in find_numbered(names)]
        ['part*.pt', 'r*_s5.pt']
    """
    known = {name for family in find_counted(names) for name in family.files.values()}
    own = [name for name in names if "/" not in name and rank_of(name) is None and name not in known]
    left = dict.fromkeys(name for name in own if _KIND.search(name) and not _CUT.search(name))
    families: list[RankFamily] = []
    for back in range(1, max((len(_ANY_NUMBER.findall(name)) for name in left), default=0) + 1):
        found: dict[str, dict[int, str]] = {}
        for name in left:
            numbers = list(_ANY_NUMBER.finditer(name))
            if len(numbers) >= back:
                at = numbers[-back]
                stem = f"{name[: at.start()]}*{name[at.end() :]}"
                found.setdefault(stem, {}).setdefault(int(at[0]), name)
        for stem, members in found.items():
            if len(members) > 1 and set(members) == set(range(len(members))):
                families.append(RankFamily(stem, dict(sorted(members.items())), is_explicit=False))
                left = {name: None for name in left if name not in members.values()}
    return families


def _count_in(stem: str) -> int:
    match = _WORLD_SIZE.search(stem)
    return int(match[1] or match[2]) if match else 0


def _checked(stem: str, members: Mapping[int, str], where: str) -> RankFamily:
    count = max(_count_in(stem), max(members) + 1)
    missing = list(itertools.islice((rank for rank in range(count) if rank not in members), 9))
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        msg = (
            f"{where!r} holds `{stem}` of {counted(len(members), 'rank')}, expected {count}: those of rank "
            f"{shown} are missing. Each rank saved a part of every tensor, so all of them are needed."
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
