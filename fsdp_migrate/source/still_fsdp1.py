"""What still shards with FSDP1 once ``rewrite`` has done what it can, in files that shard by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.left_comments import looks_for_them
from fsdp_migrate.source.rules import (
    constructor,
    leftovers,
    manual_wrapping,
    partials,
    subclass,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.source.uses import Found, Use


PREPARING: Final = frozenset({"FM301", "FM302", "FM331", "FM429"})
"""What becomes a call of ``prepare_fully_shard``."""
_WRAPS: Final = frozenset(rule.NAME for rule in (constructor, manual_wrapping, partials, subclass))
"""Not what shards a model beside the one that a Trainer trains, where that is asked for FSDP: TRL's."""
_CODES: Final = frozenset({"FM303", "FM304"})
_PLACES: Final = 6
_STILL: Final = (
    "{} still {} with FSDP1, {}: no line there calls prepare_fully_shard, so {}. To be changed: {}."
)
_NOWHERE: Final = "no comment stops a run, which {}"
_ELSEWHERE: Final = "a run that does not come to it in another file {}"
_AS_BEFORE: Final = "goes on as before without a word"
_MIXED: Final = (
    "goes on with FSDP1 without a word, and comes to lines that are turned already, which save, load or ask "
    "otherwise than before"
)


def still_fsdp1(uses: Iterable[Use]) -> tuple[Use, ...]:
    """Return what still shards with FSDP1, in files that call ``prepare_fully_shard`` nowhere.

    Args:
        uses: What was found in a project, or in what ``rewrite`` is given.
    """
    by_file: dict[str, list[Use]] = {}
    for use in uses:
        if use.cell is None:
            by_file.setdefault(use.path, []).append(use)
    plain = (here for path, here in by_file.items() if not any(map(is_turned, here)) and not calls_ours(path))
    return tuple(use for here in plain for use in here if is_left_wrap(use.rule, use))


def said_of_still(still: Sequence[Use], *, is_checked: bool, is_mixed: bool = False) -> str:
    """Say which files still train with FSDP1, and which places have to change; nothing of none.

    Args:
        still: What :func:`still_fsdp1` found.
        is_checked: Whether something in the project stops a run at the comments that are left.
        is_mixed: Whether their runs come to lines that are turned all the same.
    """
    if not still:
        return ""
    files = list(dict.fromkeys(use.path for use in still))
    places = (f"{use.path}:{use.line} ({use.code})" for use in still)
    return _STILL.format(
        listed(files, _PLACES),
        "trains" if len(files) == 1 else "train",
        "as it stands" if all(use.is_marked for use in still) else "also once it is rewritten",
        (_ELSEWHERE if is_checked else _NOWHERE).format(_MIXED if is_mixed else _AS_BEFORE),
        listed(dict.fromkeys(places), _PLACES),
    )


def is_turned(use: Use | Found) -> bool:
    """Tell whether a use becomes a call of ``prepare_fully_shard``."""
    return use.action == "rewritten" and use.code in PREPARING


def is_left_wrap(rule: str, use: Use | Found) -> bool:
    """Tell whether what a rule found makes models of FSDP1, or has others make them, and is left."""
    if use.action != "commented" or use.code not in _CODES:
        return False
    is_value = rule == leftovers.NAME and use.becomes.startswith(leftovers.CLASS_AS_A_VALUE)
    return rule in _WRAPS or is_value


def calls_ours(path: str) -> bool:
    """Tell whether a file calls what stops a run at the comments."""
    try:
        return looks_for_them(Path(path).read_text(errors="replace"))
    except OSError:
        return False
