"""Files of outputs, written whole or in parts, and on the disk once they are closed.

Long ones are written past the page cache (``O_DIRECT``) on file systems of local disks. A checkpoint is
often larger than the memory: in the page cache it would take the place of what other processes need, count
against the limit of a container, and to find each of its pages costs more than to write it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.outputs.output import writing


if TYPE_CHECKING:
    from typing_extensions import Self

    from fsdp_migrate.checkpoint_convert.outputs.output import OutputFile


# From which length on a file, or a part of one, is written past the page cache.
DIRECT_BYTES: Final = 16 << 20
# How much is handed to the system at once.
STAGE_BYTES: Final = 1 << 20
# Whole pages of memory and whole blocks of the disk, so that no page is written in both ways.
_ALIGNMENT: Final = max(mmap.PAGESIZE, 4096)
_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
# Network file systems gather writes in the page cache and bring them away while the next are made; a direct
# write would wait for the server each time.
_LOCAL_DISKS: Final = ("ext4", "xfs", "overlay")
_MOUNTS: Final = Path("/proc/self/mountinfo")


def create_file(path: Path, shown: Path, keep: int, part: int | None, size: int) -> OutputFile:
    """Open a file of an output for writing, after its first ``keep`` bytes.

    Args:
        path: The file.
        shown: What it is called in messages.
        keep: How many bytes of it, or of its part, are there already.
        part: Where the part begins that is written; what else is in the file stays. None for the whole file.
        size: How long the file or the part is going to be; 0 where that is not known.
    """
    with writing(shown):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not keep and part is None:
            path.unlink(missing_ok=True)
        return DurableFile(path, shown, keep, part, is_direct=size >= DIRECT_BYTES)


class DurableFile:
    """A file whose bytes are on the disk once it is closed without an error.

    What is written is collected in whole pages. The first and the last page of a part belong to the
    neighbouring parts too, which others may be writing: they are written by the byte, through the page cache.
    """

    def __init__(self, path: Path, shown: Path, keep: int, part: int | None, *, is_direct: bool) -> None:
        self._shown = shown
        self._is_direct = False
        # An anonymous mapping begins at a page, and O_DIRECT takes memory only that is aligned so.
        self._stage = memoryview(mmap.mmap(-1, STAGE_BYTES))
        start = (part or 0) + keep
        # Where the stage lies in the file, and which bytes of it wait to be written.
        self._base = start - start % _ALIGNMENT
        self._first = self._end = start - self._base
        # Never opened for reading: a network file system would then write back whole pages, and with them
        # bytes that belong to another machine's part.
        flags = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | os.O_NOFOLLOW
        if part is not None:
            flags |= os.O_CREAT
        elif not keep:
            flags |= os.O_CREAT | os.O_EXCL
        self._fd = os.open(path, flags, 0o666)
        if keep and part is None:
            os.ftruncate(self._fd, keep)
        self._can_be_direct = is_direct and _O_DIRECT != 0 and _is_on_local_disk(self._fd)

    def write(self, data: bytes | memoryview, /) -> int:
        """Append bytes."""
        at, count = 0, len(data)
        with writing(self._shown):
            while at < count:
                step = min(count - at, len(self._stage) - self._end)
                self._stage[self._end : self._end + step] = data[at : at + step]
                self._end += step
                at += step
                if self._end == len(self._stage):
                    self._flush()
        return count

    def sync(self) -> bool:
        """Bring what was written to the disk."""
        with writing(self._shown):
            self._flush()
            os.fsync(self._fd)
        return True

    def _flush(self) -> None:
        """Write what waits. A last page that is not full stays, to be written again once it is."""
        first, end = self._first, self._end
        # Three pieces: bytes up to the next whole block, which a neighbour began; whole blocks; and a last
        # block that is not full yet.
        head = min(first + -first % _ALIGNMENT, end)
        body = max(end - end % _ALIGNMENT, head)
        self._put(first, head, is_direct=False)
        self._put(head, body, is_direct=True)
        self._put(body, end, is_direct=False)
        keep = end - end % _ALIGNMENT
        if keep:
            self._stage[: end - keep] = self._stage[keep:end]
            self._base += keep
            self._end -= keep
            self._first = 0

    def _put(self, start: int, stop: int, *, is_direct: bool) -> None:
        while start < stop:
            # After a write that was cut short only whole blocks can be written directly.
            direct = is_direct and self._can_be_direct and start % _ALIGNMENT == 0
            try:
                self._switch(direct)
                start += os.pwrite(self._fd, self._stage[start:stop], self._base + start)
            except OSError as error:
                if not direct or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                # The file system takes no direct writes, or only larger blocks.
                self._can_be_direct = False

    def _switch(self, direct: bool) -> None:
        if direct == self._is_direct:
            return
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | _O_DIRECT if direct else flags & ~_O_DIRECT)
        self._is_direct = direct

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            return
        with writing(self._shown):
            try:
                self.sync()
            finally:
                os.close(self._fd)


def _is_on_local_disk(fd: int) -> bool:
    """Tell whether a file is on a file system of a local disk, as the system's table of mounts says."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # Fields are: its number, its parent's, the device, ...; and behind a dash the type.
    kinds = [m.partition(" - ")[2].split(" ")[0] for m in mounts if m.split(" ")[2:3] == [number]]
    return bool(kinds) and kinds[0] in _LOCAL_DISKS
