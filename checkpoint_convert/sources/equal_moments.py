"""Optimizers that torch saved corrupt: both moments of a parameter are the same (FM217)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Part


_REMEDY: Final = (
    "Save it again with offload_to_cpu=False, or SHARDED_STATE_DICT; or leave it out with "
    "`without_optimizer` (--without-optimizer). `keep_corrupt_optimizer` (--keep-corrupt-optimizer) carries "
    "it over as it is."
)


def find_equal_moments(
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    are_equal: Callable[[TensorEntry, TensorEntry], bool],
    how: str,
) -> Iterator[Finding]:
    """Yield a finding for each optimizer in which both moments of a parameter are the same.

    torch gathers one of them over the other, for a full optimizer state on CPU with offload_to_cpu=True.

    Args:
        entries: The entries of a source.
        parts: Its parts.
        are_equal: Tells whether two tensors are the same.
        how: What is the same of them, in a sentence.
    """
    for part in parts:
        tensors = {
            entry_path(entry): entry
            for key in (part.keys if part.kind == "optimizer" else ())
            if isinstance(entry := entries[key], TensorEntry) and entry.nbytes
        }
        pairs = [
            (first, second)
            for path, first in tensors.items()
            # With flattened optimizers the last name is the whole key.
            if str(path[-1]).endswith("exp_avg")
            and (second := tensors.get((*path[:-1], f"{path[-1]}_sq"))) is not None
        ]
        same = [first.key for first, second in pairs if are_equal(first, second)]
        if same:
            yield make_finding(
                "FM217",
                part.name,
                f"{len(same)} of {counted(len(pairs), 'parameter')}, such as `{same[0]}`: {how} torch does "
                "that to a full optimizer state on CPU with offload_to_cpu=True, its default.",
                _REMEDY,
            )
