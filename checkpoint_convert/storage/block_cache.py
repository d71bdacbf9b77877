"""Fewer requests to services: small reads of a file are answered from larger blocks of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final


BLOCK_BYTES: Final = 512 << 10
# Half a block: what is larger is read by itself, and not kept.
_SMALL: Final = BLOCK_BYTES // 2
_MAX_BLOCKS: Final = 64

Fetch = Callable[[str, int, int], bytes]
"""Returns the bytes of a file from one position to another, or to its end where that comes first."""


class BlockCache:
    """The blocks of files that were read last, 32 MiB of them. Safe to use from several threads.

    An archive of torch.save takes several reads of a few bytes each, and thousands of them lie side by side.

    Args:
        fetch: Reads from the service.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], _Block] = OrderedDict()

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
        """
        if length > _SMALL:
            return self._fetch(name, offset, offset + length)
        found = b""
        for number in range(offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1):
            start = number * BLOCK_BYTES
            data = self._block(name, number)
            found += data[max(offset - start, 0) : offset + length - start]
            if len(data) < BLOCK_BYTES:
                break
        return found

    def _block(self, name: str, number: int) -> bytes:
        with self._lock:
            block = self._blocks.setdefault((name, number), _Block())
            self._blocks.move_to_end((name, number))
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        # Who comes second waits for the first, and asks for nothing.
        with block.lock:
            if block.data is None:
                start = number * BLOCK_BYTES
                block.data = self._fetch(name, start, start + BLOCK_BYTES)
            return block.data


class _Block:
    __slots__ = ("data", "lock")

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.lock = threading.Lock()
