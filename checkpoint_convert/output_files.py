"""Files of outputs, written whole or in parts, and on the disk once they are closed."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final, Protocol

from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self


_BUFFER: Final = 1 << 20


class OutputFile(Protocol):
    """A file that is being written, from its start to its end."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""
        ...

    def sync(self) -> bool:
        """Bring what was written to the disk; False where only whole files can be."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, trace: object, /) -> object:
        """Close the file; its bytes are on the disk then, unless there was an error."""
        ...


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Turn what the operating system says into an :class:`OutputError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError | OutputExistsError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            msg = (
                f"The disk is full: {str(path)!r} could not be written. Nothing was left of the output, "
                "and the source is as it was. Free some space, or choose another disk."
            )
        else:
            reason = error.strerror or str(error)
            msg = (
                f"{str(path)!r} could not be written: {reason}. Nothing was left of the output, and the "
                "source is as it was."
            )
        output_error = OutputError(msg, path=path)
        output_error.errno = error.errno
        raise output_error from error


def read_first(path: Path, nbytes: int) -> Iterator[bytes]:
    """Yield the first bytes of a file."""
    if not nbytes:
        return
    with path.open("rb", buffering=0) as file:
        while nbytes and (data := file.read(min(nbytes, _BUFFER))):
            nbytes -= len(data)
            yield data


def create_file(path: Path, shown: Path, keep: int, part: int | None) -> OutputFile:
    """Open a file of an output, which is called ``shown`` in messages."""
    with writing(shown):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not keep and part is None:
            path.unlink(missing_ok=True)
        return _DurableFile(path, shown, keep, part)


class _DurableFile:
    """A file whose bytes are on the disk once it is closed without an error."""

    def __init__(self, path: Path, shown: Path, keep: int, part: int | None) -> None:
        self._shown = shown
        if part is not None:
            # Never opened for reading: a network file system would then write back whole pages, and with
            # them bytes that belong to another machine's part.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0)
            self._file = open(os.open(path, flags, 0o666), "wb", buffering=_BUFFER)  # noqa: PTH123, SIM115
            self._file.seek(part + keep)
            return
        self._file = path.open("r+b" if keep else "xb", buffering=_BUFFER)
        if keep:
            self._file.seek(keep)
            self._file.truncate()

    def write(self, data: bytes | memoryview, /) -> int:
        """Append bytes."""
        with writing(self._shown):
            return self._file.write(data)

    def sync(self) -> bool:
        """Bring what was written to the disk."""
        with writing(self._shown):
            self._file.flush()
            os.fsync(self._file.fileno())
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            return
        with writing(self._shown), self._file:
            self.sync()
