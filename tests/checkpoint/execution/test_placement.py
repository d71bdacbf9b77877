"""Which rank writes which item and file."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from fsdp_migrate.checkpoint_convert.execution.placement import CopyItem
from fsdp_migrate.checkpoint_convert.execution.segments import SEGMENT_BYTES, cut_segments, divide_segments
from fsdp_migrate.checkpoint_convert.manifest.manifest import Stored


@settings(deadline=None)  # other processes may hold the machine
@given(st.lists(st.lists(st.integers(0, 3 * SEGMENT_BYTES), max_size=5), max_size=8), st.integers(1, 6))
def test_every_item_is_written_once_and_ranks_get_equal_bytes(sizes: list[list[int]], parts: int) -> None:
    files = {str(n): [CopyItem(Stored("x", 0, k), k) for k in lengths] for n, lengths in enumerate(sizes)}
    segments = cut_segments(files)
    for name, items in files.items():
        mine = [s for s in segments if s.file == name]
        assert [n for s in mine for n in range(s.first, s.stop)] == list(range(len(items)))
        assert [s.offset for s in mine] == [sum(i.length for i in items[: s.first]) for s in mine]
        assert all(s.nbytes == sum(i.length for i in items[s.first : s.stop]) for s in mine)
    divided = divide_segments(segments, parts)
    assert sorted((s.file, s.offset) for part in divided for s in part) == sorted(
        (s.file, s.offset) for s in segments
    )
    total, largest = sum(s.nbytes for s in segments), max((s.nbytes for s in segments), default=0)
    most = max(sum(s.nbytes for s in part) for part in divided)
    assert most * parts <= max(1.1 * total, total + parts * largest)


def test_files_stay_together_where_that_is_fair() -> None:
    items = [CopyItem(Stored("x", 0, SEGMENT_BYTES), SEGMENT_BYTES)] * 3
    for part in divide_segments(cut_segments({"a": items, "b": items}), 2):
        assert len({segment.file for segment in part}) == 1
    both = divide_segments(cut_segments({"a": [*items, items[0]]}), 2)
    assert [len(part) for part in both] == [2, 2]
