"""What a file of an output is, whatever it lies on, and what is said when one cannot be written."""

from __future__ import annotations

import contextlib
import errno
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
