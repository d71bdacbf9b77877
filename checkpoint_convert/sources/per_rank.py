"""One file per rank: what each rank saved for itself, read without a process group and put together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.flatten import flatten_state
from fsdp_migrate.checkpoint_convert.formats.sharded_values import ShardedValue
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from fsdp_migrate.checkpoint_convert.sources.composer import composer_evidence
from fsdp_migrate.checkpoint_convert.sources.contents import Contents, moved_entry
from fsdp_migrate.checkpoint_convert.sources.flat_params.states import describe_flat, take_flat
from fsdp_migrate.checkpoint_convert.sources.flat_params.tensors import FLAT_KEY
from fsdp_migrate.checkpoint_convert.sources.full_state import plain_findings, read_state_file
from fsdp_migrate.checkpoint_convert.sources.rank_files import (
    RankFamily,
    family_prefix,
    find_counted,
    find_families,
    find_numbered,
)
from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState, merge_findings, merge_states, settle
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError
from fsdp_migrate.findings import counted, listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry
    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.findings import Finding


_PACKED = ".__bnb_optimizer_quant_state__."


def find_rank_files(folder: Folder, files: Mapping[str, int]) -> list[RankFamily]:
    """Return the families of files that ranks saved each for itself, by their names or by what they hold.

    A name such as ``optimizer.00001-of-00002.pth`` may also be that of a piece of one state, and
    ``ckpt_1.pt`` that of a step. They are of ranks if each has the same names, or parts of the same tensors.
    And ``ba4-rank0.pt`` alone may be a whole state, which rank 0 saved for all.

    Args:
        folder: Where they lie.
        files: Every file there, with its size.

    Raises:
        CheckpointNotFoundError: The file of a rank is missing.
        CheckpointFormatError: Two files are of one rank.
    """
    families = _without_whole(folder, find_families(files, where=folder.url), files)
    numbered = (*find_counted(files), *find_numbered(files))
    return [*families, *(family for family in numbered if _are_of_ranks(folder, family, files))]


def _without_whole(
    folder: Folder, families: Sequence[RankFamily], sizes: Mapping[str, int]
) -> list[RankFamily]:
    """Return families without the files of rank 0 that are each a checkpoint by themselves.

    Those are Composer's full states, and of others what cannot be one with another: it holds the same names.
    """
    alone: dict[str, dict[str, tuple[Path, object]]] = {}
    for family in families:
        if len(family.files) == 1 and not family.says_count:
            try:
                leaves = read_rank(folder, family.files[0], sizes[family.files[0]], 0).leaves
            except (CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError):
                continue
            if not any(_is_part(key, leaf) for key, (_, leaf) in leaves.items()):
                alone[family.stem] = leaves
    counts = Counter(key for leaves in alone.values() for key in leaves)
    whole = {
        stem
        for stem, leaves in alone.items()
        if composer_evidence(path for path, _ in leaves.values()) or any(counts[key] > 1 for key in leaves)
    }
    return [family for family in families if family.stem not in whole]


def _is_part(key: str, leaf: object) -> bool:
    """Tell whether a leaf is a rank's part of a tensor."""
    return isinstance(leaf, ShardedValue) or FLAT_KEY.search(key) is not None


def _are_of_ranks(folder: Folder, family: RankFamily, sizes: Mapping[str, int]) -> bool:
    try:
        first, second = (
            read_rank(folder, family.files[rank], sizes[family.files[rank]], rank).leaves for rank in (0, 1)
        )
    except (CheckpointFormatError, UnsupportedFeatureError):
        return False
    common = [key for key in first if key in second]
    values = [(key, first[key][1], second[key][1]) for key in common]
    if any(_is_part(key, leaf) for key, leaf, _ in values):
        return True
    # Pieces of one state have no name in common; steps of one run have all, and tensors whole in each.
    return family.is_explicit and (bool(values) or not _has_tensors(first))


def _has_tensors(leaves: Mapping[str, tuple[Path, object]]) -> bool:
    return any(isinstance(leaf, TensorValue) for _, leaf in leaves.values())


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
    # Before the ranks are compared: packed pieces differ on each, and that would be called a contradiction.
    contents.findings += [found for states in every for found in leave_packed_out(states)]
    # Over all families: OLMo describes flat parameters in `model/`, and their optimizer is in `optim/`.
    described = describe_flat(every, folder)
    for family, states in zip(families, every, strict=True):
        flat = take_flat(states, described, options, folder)
        merged = merge_states(folder, flat.states)
        merged.entries = flat.joined(merged.entries)
        settle(merged, folder)
        contents.findings += [
            *states[0].findings,
            *flat.findings,
            *merge_findings(merged, family.stem, len(states)),
        ]
        prefix = family_prefix(family, merged.entries, alone=alone and len(families) == 1)
        for entry in merged.entries.values():
            _add(contents, moved_entry(entry, prefix), family, families, folder)
        contents.files.update({name: sizes[name] for name in family.files.values()})
    return contents


def leave_packed_out(states: Sequence[RankState]) -> Iterator[Finding]:
    """Take out what bitsandbytes packed of each rank's own piece, and say that it cannot be cut otherwise."""
    packed = {key for state in states for key in state.leaves if _PACKED in key}
    for state in states:
        for key in packed & set(state.leaves):
            del state.leaves[key]
    if packed:
        text = (
            f"{counted(len(packed), 'tensor')} of bitsandbytes' optimizer, such as `{min(packed)}`: each "
            "rank's blocks of few bits, with their scales, of its own piece of FSDP1's flat parameters."
        )
        hint = "Leave the optimizer out with `weights_only` (--weights-only)."
        yield make_finding("FM299", "optimizer", text, hint)


def read_rank(folder: Folder, name: str, size: int, rank: int) -> RankState:
    """Read what one rank saved.

    Raises:
        CheckpointFormatError: It is damaged.
    """
    saved = read_state_file(folder, name, size)
    where = f"'{folder.url}/{name}'"
    leaves = flatten_state(saved.value, pickle_size=saved.pickle_size, where=where)
    return RankState(rank, name, leaves, tuple(plain_findings(saved.value, name)))


def _add(
    contents: Contents, entry: Entry, family: RankFamily, families: Sequence[RankFamily], folder: Folder
) -> None:
    if entry.key in contents.entries:
        msg = (
            f"{folder.url!r} holds more than one set of rank files with an entry `{entry.key}`, so more than "
            f"one checkpoint, of several steps or models: {_sets(families)}. The second is `{family.stem}`. "
            "Name the folder, or one file of the set that you mean."
        )
        raise CheckpointFormatError(msg, path=folder.url)
    contents.entries[entry.key] = entry


def _sets(families: Sequence[RankFamily]) -> str:
    folders = dict.fromkeys(family.stem.rpartition("/")[0] for family in families)
    names = [f"`{name}/`" if name else "`.`" for name in folders] if len(folders) > 1 else []
    names = names or [f"`{family.stem}`" for family in families]
    return listed(names, 12)
