"""Optimizers that torch saved corrupt: both moments of a parameter are the same (FM217).

torch gathers each tensor of a parameter's state over the one before, for a full optimizer state on CPU with
offload_to_cpu=True. In the file that it saves then they are the same bytes. Once that was loaded and saved
again, as a distributed checkpoint or otherwise, only the values tell. Every parameter of an FSDP1 unit has
the fault, so a few are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.manifest.classify import MOMENTS, entry_path
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.errors import CheckpointReadError, FSDPMigrateError
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, Shape
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Part
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_REMEDY: Final = (
    "Save it again with offload_to_cpu=False, or SHARDED_STATE_DICT; or leave it out with "
    "`without_optimizer` (--without-optimizer). `keep_corrupt_optimizer` (--keep-corrupt-optimizer) carries "
    "it over as it is."
)
_ELEMENTS: Final = 4096
# Parameters that were never stepped have zeros for moments, which tell nothing.
_MOST_READ: Final = 8
_MOST_TELLING: Final = 3
_FEWEST: Final = 2

Pair = tuple[TensorEntry, TensorEntry]


def find_equal_moments(
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    are_equal: Callable[[TensorEntry, TensorEntry], bool],
    how: str,
) -> Iterator[Finding]:
    """Yield a finding for each optimizer in which both moments of a parameter are the same.

    Args:
        entries: The entries of a source.
        parts: Its parts.
        are_equal: Tells whether two tensors are the same.
        how: What is the same of them, in a sentence.
    """
    for part in parts:
        pairs = moments_of(entries, part)
        same = list(dict.fromkeys(first.key for first, second in pairs if are_equal(first, second)))
        if same:
            yield _finding(part, f"{len(same)} of {_parameters(pairs)}", same[0], how)


def look_for_equal_moments(
    folder: Folder, entries: Mapping[str, Entry], parts: Sequence[Part]
) -> Iterator[Finding]:
    """Yield a finding for each optimizer whose moments are the same bytes, or the same bits in a sample.

    Of a few parameters, small and large ones, some elements are read. What is missing or damaged is passed
    over: who reads all of it says so.

    Raises:
        CheckpointReadError: The system fails to read some of them.
    """
    by_place = list(
        find_equal_moments(
            entries, parts, lambda one, two: one.chunks == two.chunks, "both are the same bytes of the file."
        )
    )
    yield from by_place
    told = {finding.subject for finding in by_place}
    for part in parts:
        pairs = [] if part.name in told else moments_of(entries, part)
        same = _first_same(folder, pairs)
        if same is not None:
            yield _finding(
                part,
                f"at least 1 of {_parameters(pairs)}",
                same.key,
                "they have the same bits where a sample was read.",
            )


def moments_of(entries: Mapping[str, Entry], part: Part) -> list[Pair]:
    """Return the tensors of a part that are both moments of a parameter.

    Example:
        >>> from fsdp_migrate.checkpoint_convert import inspect_checkpoint
        >>> manifest = inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp")
        >>> pairs = moments_of(manifest.entries, next(p for p in manifest.parts if p.kind == "optimizer"))
        >>> [each.key.rpartition(".")[2] for each in pairs[0]]
        ['exp_avg', 'exp_avg_sq']
    """
    tensors = {
        entry_path(entry): entry
        for key in (part.keys if part.kind == "optimizer" else ())
        if isinstance(entry := entries[key], TensorEntry) and entry.nbytes
    }
    return [
        (first, second)
        for path, first in tensors.items()
        for one, others in MOMENTS.items()
        # With flattened optimizers the last name is the whole key.
        if str(path[-1]).endswith(one)
        for other in others
        if (second := tensors.get((*path[:-1], str(path[-1]).removesuffix(one) + other))) is not None
    ]


def _parameters(pairs: Sequence[Pair]) -> str:
    return counted(len({first.key for first, _ in pairs}), "parameter")


def _finding(part: Part, count: str, key: str, how: str) -> Finding:
    text = (
        f"{count}, such as `{key}`: {how} torch does that to a full optimizer state on CPU with "
        "offload_to_cpu=True, its default."
    )
    return make_finding("FM217", part.name, text, _REMEDY)


def _first_same(folder: Folder, pairs: Sequence[Pair]) -> TensorEntry | None:
    """Return a first moment that has the bits of the second, of those that are read and tell."""
    able = [
        p for p in pairs if math.prod(p[0].shape) > 1 and (p[0].shape, p[0].dtype) == (p[1].shape, p[1].dtype)
    ]
    able.sort(key=lambda pair: pair[0].nbytes)
    count = min(len(able), _MOST_READ)
    chosen = [able[number * (len(able) - 1) // max(count - 1, 1)] for number in range(count)]
    telling = 0
    for first, second in chosen:
        box = (0,) * len(first.shape), _leading(first.shape)
        try:
            values, others = (_read(folder, entry, box) for entry in (first, second))
        except CheckpointReadError:
            raise  # the system's: whoever converts must not go on without this look
        except FSDPMigrateError:
            continue
        tells = any(shows_fault(first.dtype, [each]) for each in (values, others))
        if tells and values == others:
            return first
        telling += tells
        if telling == _MOST_TELLING:
            break
    return None


def shows_fault(dtype: str, blocks: Iterable[bytes | memoryview]) -> bool:
    """Tell whether a moment shows the fault, if the other one is the same.

    Zeros show nothing. Nor does one value beside them: gradients that are all 1, as a sum gives them for a
    bias, make RMSprop's two averages the same.

    Example:
        >>> shows_fault("uint8", [bytes(4), bytes([7])]), shows_fault("uint8", [bytes(4), bytes([7, 8])])
        (False, True)
    """
    width = min(DTYPES[dtype].itemsize, 8)  # of complex128 the halves
    seen: list[Any] = []
    for block in blocks:
        values = np.frombuffer(block, f"u{width}")
        while (values := values[~np.isin(values, seen)]).size:
            seen.append(values[0])
            if len(seen) > _FEWEST:
                return True
    return False


def _leading(shape: Shape) -> Shape:
    """Return the sizes of the first elements of a tensor, a few thousand of them at most.

    Example:
        >>> _leading((100_000, 64)), _leading((3, 100_000)), _leading((2, 2))
        ((64, 64), (1, 4096), (2, 2))
    """
    sizes: list[int] = []
    left = _ELEMENTS
    for size in reversed(shape):
        sizes.insert(0, min(size, left))
        left = max(left // sizes[0], 1)
    return tuple(sizes)


def _read(folder: Folder, entry: TensorEntry, box: Box) -> bytes:
    source = TensorSource(folder, _ELEMENTS * 16)
    return b"".join(bytes(block) for block in source.read(entry, box))
