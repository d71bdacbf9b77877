"""Cut what is written into segments that are written by themselves, and divide them over ranks. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.execution.placement import EndItem


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.execution.placement import Item


# A segment is what one thread writes at a time, and what a killed conversion has to write again.
SEGMENT_BYTES = 256 << 20
# How much more than its share a rank may get before files are divided.
_UNEVEN = 1.1


@dataclass(frozen=True, slots=True)
class Segment:
    """Items of one data file that follow each other.

    Attributes:
        file: The name of the file.
        first: The number of its first item.
        stop: The number after its last.
        offset: Where in the file it begins, in bytes.
        nbytes: How long it is.
        is_whole: Whether it is the whole file.
    """

    file: str
    first: int
    stop: int
    offset: int
    nbytes: int
    is_whole: bool

    @property
    def part(self) -> int | None:
        """Return where it begins, or None where it is the whole file."""
        return None if self.is_whole else self.offset


def cut_segments(files: Mapping[str, Sequence[Item]], *, whole_files: bool = False) -> list[Segment]:
    """Cut files into segments of about :data:`SEGMENT_BYTES`, between items.

    Args:
        files: The items of each file.
        whole_files: Do not cut files.
    """
    found: list[Segment] = []
    for file, items in files.items():
        cuts: list[tuple[int, int, int, int]] = []
        first = offset = nbytes = 0
        # The end of a file of torch.save tells the checksums of all that is before it.
        whole = whole_files or (bool(items) and isinstance(items[-1], EndItem))
        for number, item in enumerate(items, 1):
            nbytes += item.length
            if nbytes >= SEGMENT_BYTES and number < len(items) and not whole:
                cuts.append((first, number, offset, nbytes))
                first, offset, nbytes = number, offset + nbytes, 0
        cuts.append((first, len(items), offset, nbytes))
        found += [Segment(file, *cut, is_whole=len(cuts) == 1) for cut in cuts]
    return found


def divide_segments(segments: Iterable[Segment], parts: int) -> list[list[Segment]]:
    """Divide segments so that every part has about the same bytes.

    Files stay together where that is possible: two machines then do not write to one file.

    Example:
        >>> def file(name, nbytes):
        ...     return Segment(name, 0, 1, 0, nbytes, True)
        >>> files = [file("a", 5), file("b", 9), file("c", 4)]
        >>> [[s.file for s in part] for part in divide_segments(files, 2)]
        [['b'], ['a', 'c']]
    """
    segments = list(segments)
    of_file: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        of_file[segment.file].append(segment)
    by_files = _divide(list(of_file.values()), parts)
    most = max(sum(s.nbytes for s in part) for part in by_files)
    if most * parts <= _UNEVEN * sum(s.nbytes for s in segments):
        return by_files
    return _divide([[segment] for segment in segments], parts)


def _divide(groups: Sequence[Sequence[Segment]], parts: int) -> list[list[Segment]]:
    """Give each group, the largest first, to the part that has the least so far."""
    found: list[list[Segment]] = [[] for _ in range(parts)]
    queue = [(0, number) for number in range(parts)]
    sizes = [sum(segment.nbytes for segment in group) for group in groups]
    for index in sorted(range(len(groups)), key=lambda i: -sizes[i]):
        nbytes, number = queue[0]
        found[number] += groups[index]
        heapq.heapreplace(queue, (nbytes + sizes[index], number))
    return found
