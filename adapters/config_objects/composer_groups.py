"""Composer's words for process groups (``node``, ``set4``, ``mod2``): which ranks each of them means.

Composer reads them in ``composer.distributed.mosaic_parallelism._get_process_group``. Nothing here makes a
group, and nothing imports torch: what makes one needs to know the ranks only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from fsdp_migrate.errors import ConfigError


GroupKind = Literal["set", "mod", "ranks"]

_NUMBERED = re.compile(r"(set|mod)([1-9]\d*)")
_KNOWN = "`self`, `node`, `local_rank_across_nodes`, `setK`, `modK`, or a list of ranks"


@dataclass(frozen=True)
class GroupWord:
    """Ranks by a rule: ``set``: blocks of ``size`` ranks; ``mod``: every ``size``-th; ``ranks``: these.

    ``size`` 0 stands for the number of ranks of a node, which only a running job knows.
    """

    kind: GroupKind
    size: int = 0
    ranks: tuple[int, ...] = ()
    word: str = ""

    def ranks_of(self, rank: int, world_size: int, local_world_size: int) -> tuple[int, ...]:
        """Return the ranks of the group that ``rank`` is in.

        Raises:
            ConfigError: The ranks do not divide so, or a given list holds ranks that do not exist.

        Example:
            >>> GroupWord("set", 2).ranks_of(3, 4, 4), GroupWord("mod", 2).ranks_of(3, 4, 4)
            ((2, 3), (1, 3))
        """
        if self.kind == "ranks":
            strangers = [each for each in self.ranks if not 0 <= each < world_size]
            if strangers or rank not in self.ranks:
                msg = (
                    f"`process_group` is {list(self.ranks)} on rank {rank} of {world_size}: it must hold "
                    "that rank, and no ranks that do not exist."
                )
                raise ConfigError(msg, field="process_group")
            return self.ranks
        size = self.size or local_world_size
        if world_size % size:
            msg = f"`process_group` is {self.word!r}, but {world_size} ranks are no multiple of {size}."
            raise ConfigError(msg, field="process_group")
        if self.kind == "set":
            start = rank // size * size
            return tuple(range(start, start + size))
        return tuple(range(rank % size, world_size, size))


def read_group(value: Any, field: str = "process_group") -> Any:
    """Read what stands for a group: a word, a list of ranks, a pair of such; others are returned as they are.

    Returns:
        None, a :class:`GroupWord`, a pair of those (shard group, replicate group), or the object itself.

    Raises:
        ConfigError: The word means nothing.

    Example:
        >>> read_group("set4").size, read_group(["node", "local_rank_across_nodes"])[1].kind
        (4, 'mod')
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _read_word(value, field)
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            ranks = tuple(value)
            if not ranks or len(set(ranks)) != len(ranks):
                msg = f"`{field}` is {value!r}; expected ranks, each once."
                raise ConfigError(msg, field=field)
            return GroupWord("ranks", ranks=ranks, word=str(list(ranks)))
        return tuple(read_group(item, field) for item in value)
    return value


def _read_word(value: str, field: str) -> GroupWord | None:
    word = value.strip().lower()
    if word in {"", "none", "null"}:
        return None
    if word == "self":
        return GroupWord("set", 1, word=word)
    if word == "node":
        return GroupWord("set", word=word)
    if word == "local_rank_across_nodes":
        return GroupWord("mod", word=word)
    if found := _NUMBERED.fullmatch(word):
        kind: GroupKind = "set" if found[1] == "set" else "mod"
        return GroupWord(kind, int(found[2]), word=word)
    msg = f"`{field}` is {value!r}; expected {_KNOWN}."
    raise ConfigError(msg, field=field)


def has_words(group: Any) -> bool:
    """Tell whether a group, or one of a pair, is given by a rule, so that it must still be made."""
    several = group if isinstance(group, tuple) else (group,)
    return any(isinstance(item, GroupWord) for item in several)
