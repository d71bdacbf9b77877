"""Small reads behind URLs are few requests, and the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from hypothesis import given, strategies as st

from fsdp_migrate.checkpoint_convert import check_checkpoint, convert_checkpoint
from fsdp_migrate.checkpoint_convert.storage import block_cache
from fsdp_migrate.checkpoint_convert.storage.block_cache import BLOCK_BYTES, BlockCache
from tests.checkpoint.samples import PLAIN


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.any_torch


DATA = bytes(range(251)) * (21 * BLOCK_BYTES // 502)
PLACES = st.integers(0, len(DATA) - 1) | st.integers(-9, 9).map(lambda n: 2 * BLOCK_BYTES + n)
LENGTHS = st.integers(1, 40) | st.integers(1, BLOCK_BYTES) | st.integers(4 * BLOCK_BYTES, len(DATA))


@given(st.lists(st.tuples(PLACES, LENGTHS), max_size=8))
def test_reads_are_what_is_there(reads: list[tuple[int, int]]) -> None:
    cache = BlockCache(lambda name, start, stop: DATA[start:stop])
    for offset, length in reads:
        assert cache.read("file", offset, length) == DATA[offset : offset + length]


def test_old_blocks_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "_MAX_BLOCKS", 2)
    asked: list[int] = []

    def fetch(name: str, start: int, stop: int) -> bytes:
        asked.append(start // BLOCK_BYTES)
        return DATA[start:stop]

    cache = BlockCache(fetch)
    for block in (0, 3, 0, 6, 0, 3):
        cache.read("file", block * BLOCK_BYTES, 1)
    assert asked == [0, 3, 6, 3]


def test_no_more_is_asked_for_than_is_not_there() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(name: str, start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return DATA[start:stop]

    cache = BlockCache(fetch)
    cache.read("file", 9, 5)
    cache.read("file", 7 * BLOCK_BYTES + 9, 5)
    # What is large, and begins and ends in blocks that are there.
    assert cache.read("file", 90, 7 * BLOCK_BYTES) == DATA[90 : 90 + 7 * BLOCK_BYTES]
    assert asked[2:] == [(BLOCK_BYTES, 7 * BLOCK_BYTES)]
    # Small reads one after the other.
    for place in range(7 * BLOCK_BYTES, len(DATA), 5000):
        cache.read("file", place, 100)
    assert asked[3:] == [(8 * BLOCK_BYTES, 16 * BLOCK_BYTES)]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    fs: Any = fsspec.filesystem("memory")
    fs.store.clear()
    fs.put(str(PLAIN), "/ckpt", recursive=True)
    cat, found = type(fs).cat_file, []

    def counted(self: Any, path: str, *args: Any, **options: Any) -> bytes:
        found.append(path)
        data: bytes = cat(self, path, *args, **options)
        return data

    monkeypatch.setattr(type(fs), "cat_file", counted)
    yield found
    fs.store.clear()


def test_a_checkpoint_is_a_few_requests(requests: list[str], tmp_path: Path) -> None:
    check_checkpoint("memory://ckpt")
    assert len(requests) < 10
    requests.clear()
    convert_checkpoint("memory://ckpt", tmp_path / "out", world_size=4)
    assert len(requests) < 10
