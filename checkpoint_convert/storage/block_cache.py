"""Fewer requests to services: small reads of a file are answered from larger blocks of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final


BLOCK_BYTES: Final = 64 << 10
_AHEAD: Final = 8
"""How many blocks are asked for at once where the one before was read: many small items side by side."""
# What is larger is read by itself, and not kept.
_SMALL: Final = 256 << 10
_MAX_BLOCKS: Final = 512

Fetch = Callable[[str, int, int], bytes]
"""Returns the bytes of a file from one position to another, or to its end where that comes first."""


class BlockCache:
    """The blocks of files that were read last, 32 MiB of them. Safe to use from several threads.

    An archive of torch.save takes several reads of a few bytes each, and thousands of them lie side by side.
    Where they lie far apart, little more is asked for than they need.

    Args:
        fetch: Reads from the service.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str, int], _Run] = OrderedDict()

    def read(self, name: str, offset: int, length: int) -> bytes:
        r"""Return ``length`` bytes at ``offset``, or fewer where the file ends.

        Example:
            >>> data, asked = bytes(range(256)) * 4096, []
            >>> def fetch(name, start, stop):
            ...     asked.append((start, stop))
            ...     return data[start:stop]
            >>> cache = BlockCache(fetch)
            >>> cache.read("a", 5, 3), cache.read("a", 100, 2), len(asked)
            (b'\x05\x06\x07', b'de', 1)
            >>> cache.read("a", 70_000, 1), len(cache.read("a", 100, 900_000)), asked[1:]
            (b'p', 900000, [(65536, 589824), (589824, 900100)])
        """
        if length > _SMALL:
            return self._read_large(name, offset, offset + length)
        found = b""
        for number in range(offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1):
            start = number * BLOCK_BYTES
            data = self._block(name, number)
            found += data[max(offset - start, 0) : offset + length - start]
            if len(data) < BLOCK_BYTES:
                break
        return found

    def _read_large(self, name: str, start: int, stop: int) -> bytes:
        """Read what the blocks that are there do not hold of it, at its beginning and at its end."""
        before = after = b""
        while (data := self._kept(name, start // BLOCK_BYTES)) and start < stop:
            first = start % BLOCK_BYTES
            piece = data[first : first + stop - start]
            before, start = before + piece, start + len(piece)
            if len(data) < BLOCK_BYTES:
                return before
        while start < stop and len(data := self._kept(name, (stop - 1) // BLOCK_BYTES)) == BLOCK_BYTES:
            first = max((stop - 1) // BLOCK_BYTES * BLOCK_BYTES, start)
            piece = data[first % BLOCK_BYTES :][: stop - first]
            after, stop = piece + after, first
        if start == stop:
            return before + after
        found = self._fetch(name, start, stop)
        # Where the file is shorter, nothing can lie behind.
        return b"".join((before, found, after)) if before or after else found

    def _kept(self, name: str, number: int) -> bytes:
        """Return a block if it is there, and nothing otherwise."""
        with self._lock:
            run = self._runs.get((name, number))
        return b"" if run is None or run.data is None else run.block(number)

    def _block(self, name: str, number: int) -> bytes:
        with self._lock:
            run = self._runs.get((name, number)) or self._begin(name, number)
            self._runs.move_to_end((name, number))
        # Who comes second waits for the first, and asks for nothing.
        with run.lock:
            if run.data is None:
                start = run.first * BLOCK_BYTES
                run.data = self._fetch(name, start, start + run.count * BLOCK_BYTES)
            return run.block(number)

    def _begin(self, name: str, number: int) -> _Run:
        """Return the blocks that are to be asked for at once, of which this is the first."""
        ahead = range(number, number + (_AHEAD if (name, number - 1) in self._runs else 1))
        count = next((n - number for n in ahead if (name, n) in self._runs), len(ahead))
        run = _Run(number, count)
        self._runs.update({(name, n): run for n in ahead[:count]})
        while len(self._runs) > _MAX_BLOCKS:
            (other, _), old = next(iter(self._runs.items()))
            if old is run:
                break
            for n in range(old.first, old.first + old.count):
                self._runs.pop((other, n), None)
        return run


class _Run:
    """Blocks of a file that are asked for at once."""

    __slots__ = ("count", "data", "first", "lock")

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.data: bytes | None = None
        self.lock = threading.Lock()

    def block(self, number: int) -> bytes:
        """Return one of them, which is shorter where the file ends."""
        assert self.data is not None
        at = (number - self.first) * BLOCK_BYTES
        return self.data[at : at + BLOCK_BYTES]
