"""Changes of a command that make the flags of one document those of another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.flag_documents import HF_FORMER
from fsdp_migrate.adapters.conversion.flags import end_of
from fsdp_migrate.adapters.conversion.quoting import as_word, expanded_in
from fsdp_migrate.adapters.conversion.variables import Piece


if TYPE_CHECKING:
    from fsdp_migrate.adapters.conversion.flags import Flag


_GAP = re.compile(r"(?:\s|\\\n)*\Z")
_RENAMED = {"fsdp_sharding_strategy": "fsdp_reshard_after_forward"}


def edits_of(
    command: str, flags: dict[str, Flag], old: dict[str, str], new: dict[str, str]
) -> tuple[Piece, ...]:
    """Return what changes in a command: flags that go, that have another name or value, and new ones."""
    pieces: list[Piece] = []
    expanded = expanded_in(command[flag.value_start : flag.end] for flag in flags.values())
    former = [name for name in HF_FORMER if name in flags and "fsdp" in flags and name not in new]
    gone = [name for name in (*old, *former) if name not in new and name in flags]
    renamed = {old_name: name for old_name, name in _RENAMED.items() if old_name in gone and name in new}
    for old_name, name in renamed.items():
        flag = flags[old_name]
        sign = "=" if command[flag.start : flag.value_start].endswith("=") else " "
        pieces.append(Piece(flag.start, flag.end, f"--{name}{sign}{as_word(new[name], expanded)}"))
    for name in dict.fromkeys(name for name in gone if name not in renamed):
        gap = _GAP.search(command, 0, flags[name].start)
        pieces.append(Piece(gap.start() if gap else flags[name].start, flags[name].end, ""))
    for name, value in new.items():
        given = flags.get(name)
        is_same = value == old.get(name) and (name != "fsdp_config" or given is None or given.value == value)
        if given is not None and not is_same and not (name == "fsdp" and given.value is None):
            pieces.append(Piece(given.value_start, given.end, as_word(value, expanded)))
    there = {*flags, *renamed.values()}
    added = "".join(
        f" --{name} {as_word(value, expanded)}" for name, value in new.items() if name not in there
    )
    if any(name.startswith("parallelism_config") for name in new):
        added += " --use_parallelism_config"
    # Behind the last of them: what follows may be the script, and flags of its own.
    last = max(end_of(flag, command) for flag in flags.values() if flag.name.startswith(("fsdp", "use_fsdp")))
    return (*pieces, Piece(last, last, added))
