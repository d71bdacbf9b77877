"""What an unfinished conversion has done, so that another process can go on with it.

A journal is a file of lines, each flushed to the disk before the work goes on: first which conversion it is,
then what of which file is whole. A line that a crash cut off counts as not written.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.errors import OutputError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


# Raised with every change of what a line says: nothing here reads lines of an earlier format.
_FORMAT: Final = 4


@dataclass(frozen=True, slots=True)
class Written:
    """How far a data file or a part of one is: its first ``items`` items, ``nbytes`` in all, are on the disk.

    ``overflows`` counts, by key, the values in them that a cast made infinite. ``digest`` is the checksum of
    the whole file, once it is done and if one was asked for. ``agreed`` counts the bytes of the source that
    agree with a checksum, ``bare`` those that have none, and ``runs`` are the parts of records that were read
    in part (``RecordRun`` of ``stored_checksums``). ``crcs`` are the checksums of the records so far, which
    the end of a file of torch.save tells.
    """

    items: int
    nbytes: int
    is_done: bool = False
    overflows: Mapping[str, int] = field(default_factory=dict)
    digest: str | None = None
    agreed: int = 0
    bare: int = 0
    runs: Sequence[Sequence[Any]] = ()
    crcs: Sequence[int] = ()


NOTHING: Final = Written(0, 0)


class Journal:
    """One journal file; safe to append to from several threads, because a line is one write.

    Args:
        path: The file. It need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity: str | None = None
        self.place: tuple[int, int] | None = None
        self.files: dict[tuple[str, int | None], Written] = {}
        self._fd: int | None = None
        self._size = 0

    def read(self) -> None:
        """Read what is there, up to the first line that is not whole.

        Raises:
            OutputError: It is of a version of this package that writes other journals.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        for line in data.splitlines(keepends=True):
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not line.endswith(b"\n") or not isinstance(record, dict):
                return
            self._take(record)
            self._size += len(line)

    def begin(self, identity: str) -> None:
        """Say which conversion it is, unless the journal says so already."""
        if self.identity is None:
            self._append({"format": _FORMAT, "identity": identity})
            self.identity = identity

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note how far a file is, or the part of it that begins at ``part``; that is on the disk already."""
        self._append(
            {
                "file": name,
                "part": part,
                "items": written.items,
                "nbytes": written.nbytes,
                "is_done": written.is_done,
                "overflows": dict(written.overflows),
                "digest": written.digest,
                "agreed": written.agreed,
                "bare": written.bare,
                "runs": list(written.runs),
                "crcs": list(written.crcs),
            }
        )
        self.files[name, part] = written

    def record_place(self, place: tuple[int, int]) -> None:
        """Note device and number of the folder that is whole now, and about to be put in its place."""
        self._append({"place": list(place)})
        self.place = place

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            # Each line was flushed.
            with contextlib.suppress(OSError):
                os.close(fd)

    def _take(self, record: Mapping[str, Any]) -> None:
        if "identity" in record:
            if record.get("format") != _FORMAT:
                msg = (
                    f"{str(self.path)!r} was written by another version of fsdp-migrate, and this one "
                    "cannot continue it. Start again with `overwrite` (--overwrite)."
                )
                raise OutputError(msg, path=self.path)
            self.identity = str(record["identity"])
        elif "place" in record:
            device, number = record["place"]
            self.place = (int(device), int(number))
        else:
            self.files[str(record["file"]), record["part"]] = Written(
                items=int(record["items"]),
                nbytes=int(record["nbytes"]),
                is_done=bool(record["is_done"]),
                overflows=record["overflows"],
                digest=record["digest"],
                agreed=int(record["agreed"]),
                bare=int(record["bare"]),
                runs=record["runs"],
                crcs=record["crcs"],
            )

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            self._fd = os.open(self.path, flags, 0o666)
            # What a crash left of a last line would spoil the next one.
            os.ftruncate(self._fd, self._size)
        # One write to a file opened for appending is one piece, whatever other threads write; a line that a
        # crash cut short is not read.
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(self._fd, line) != len(line):
            msg = f"{str(self.path)!r} could not be written whole. The disk is full."
            raise OutputError(msg, path=self.path)
        os.fsync(self._fd)
