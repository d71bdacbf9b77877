"""What an output and its files are, wherever they lie, and what is said when one cannot be written."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Any, Final, Protocol

from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from fsdp_migrate.checkpoint_convert.outputs.journal import Written
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


_BUFFER: Final = 1 << 20


class Output(Protocol):
    """A folder that is being written.

    ``url`` is how the user called it. ``checkpoint_id`` is the same place, whatever folder one is in.
    """

    url: str
    checkpoint_id: str
    takes_parts: bool
    """Whether a file can be written in parts, by several threads or ranks at once."""
    reads_back: bool
    """Whether the first bytes of a file that is not finished can be read."""
    stands: Location | None
    """Where an output is already that may be what this conversion made before; None where there is none."""
    kept_others: Sequence[str]
    """The files of an output that was replaced that are in the new one as they were."""

    def begin(self, identity: str) -> bool:
        """Say which conversion it is; return whether an earlier process has put the output in place.

        Raises:
            OutputError: What an earlier process left is of another conversion. It is left as it is.
        """
        ...

    def prepare(self, names: Iterable[str]) -> None:
        """Say which files are going to be written, before any of them is."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what other ranks need to know to write into it, as plain JSON data."""
        ...

    def written(self, name: str, part: int | None = None) -> Written:
        """Return how far an earlier process came with a file, or the part of it that begins at ``part``."""
        ...

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a file for writing, after its first ``keep`` bytes; closing it flushes it to the disk.

        With ``part`` it is written from there, and what else is in it stays. ``size`` is how long the file is
        going to be, where that is known.
        """
        ...

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note how far a file or a part of it is, for a process that may have to go on."""
        ...

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield the first bytes of a file that an earlier process wrote."""
        ...

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Let the output share the bytes of a file of the source; False where that cannot be."""
        ...

    def commit(self) -> None:
        """Put the output in its place."""
        ...

    def abort(self, *, keep: bool = False) -> None:
        """Give up: remove everything that was written, or ``keep`` it for a process that goes on."""
        ...


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
        # These are OSErrors, too, and say already what is wrong.
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


def already_there(url: str) -> OutputExistsError:
    """Return the error for an output that may not be overwritten."""
    msg = f"{url!r} is there already. Choose another output, or replace it with `overwrite` (--overwrite)."
    return OutputExistsError(msg, path=url)
