"""One file per rank: what each rank saved for itself, read without a process group and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.layouts.flat_states import describe_flat, take_flat
from fsdp_migrate.checkpoint_convert.layouts.rank_files import RankFamily, family_prefix
from fsdp_migrate.checkpoint_convert.layouts.rank_merge import (
    RankState,
    merge_findings,
    merge_states,
    settle,
)
from fsdp_migrate.checkpoint_convert.layouts.tree import Contents, moved_entry
from fsdp_migrate.checkpoint_convert.layouts.whole import read_state_file
from fsdp_migrate.checkpoint_convert.state_tree import flatten_state
from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.metadata import Entry
    from fsdp_migrate.checkpoint_convert.source_options import SourceOptions
    from fsdp_migrate.checkpoint_convert.storage import Folder


def rank_contents(
    folder: Folder,
    families: Sequence[RankFamily],
    sizes: Mapping[str, int],
    options: SourceOptions,
    *,
    alone: bool = True,
) -> Contents:
    """Return what the files of all ranks hold together.

    Args:
        folder: Where they lie.
        families: The files by what they hold.
        sizes: The size of each file.
        options: The model that they are of, where flat parameters need it.
        alone: Whether the files are all that there is.

    Raises:
        CheckpointMismatchError: Ranks contradict each other, or the model.
        CheckpointNotFoundError: The files of some ranks are missing.
        CheckpointFormatError: A file is damaged, or two families hold the same.
    """
    ranks = max(len(family.files) for family in families)
    shown = ", ".join(f"`{family.stem}`" for family in families)
    contents = Contents("ranks", f"one file per rank, of {ranks} ranks: {shown}")
    every = [
        [read_rank(folder, name, sizes[name], rank) for rank, name in family.files.items()]
        for family in families
    ]
    described = describe_flat(every, folder)
    for family, states in zip(families, every, strict=True):
        flat = take_flat(states, described, options, folder)
        merged = merge_states(folder, flat.states)
        merged.entries = flat.joined(merged.entries)
        settle(merged, folder)
        contents.findings += [*flat.findings, *merge_findings(merged, family.stem, len(states))]
        prefix = family_prefix(family, merged.entries, alone=alone and len(families) == 1)
        for entry in merged.entries.values():
            _add(contents, moved_entry(entry, prefix), family, folder)
        contents.files.update({name: sizes[name] for name in family.files.values()})
    return contents


def read_rank(folder: Folder, name: str, size: int, rank: int) -> RankState:
    """Read what one rank saved.

    Raises:
        CheckpointFormatError: It is damaged.
    """
    saved = read_state_file(folder, name, size)
    where = f"'{folder.url}/{name}'"
    return RankState(rank, name, flatten_state(saved.value, pickle_size=saved.pickle_size, where=where))


def _add(contents: Contents, entry: Entry, family: RankFamily, folder: Folder) -> None:
    if entry.key in contents.entries:
        msg = (
            f"{folder.url!r} holds more than one set of rank files with an entry `{entry.key}`; the second "
            f"is `{family.stem}`. Name one file of the set that you mean."
        )
        raise CheckpointFormatError(msg, path=folder.url)
    contents.entries[entry.key] = entry
