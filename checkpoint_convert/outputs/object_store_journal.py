"""What an unfinished conversion behind a URL has done: one small object per rank, beside the data."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.outputs.journal import Written


if TYPE_CHECKING:
    from collections.abc import Mapping


_FORMAT: Final = 3
# An object is written anew for each note; a killed process has so many seconds to do again.
SAVE_SECONDS = 2.0
_TAGS: Final = ("ETag", "etag", "md5Hash", "generation")
_TIMES: Final = ("mtime", "created", "LastModified")


@dataclass(frozen=True, slots=True)
class Note:
    """How far a file is, the upload that its parts belong to, and what tells the whole file from others."""

    written: Written
    upload: str | None = None
    stamp: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"written": asdict(self.written), "upload": self.upload, "stamp": self.stamp}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Note:
        """Return the note that ``as_dict`` gave."""
        return Note(Written(**data["written"]), data["upload"], data["stamp"])


class RemoteJournal:
    """The notes of one rank. Safe to use from several threads.

    Args:
        fs: An fsspec file system.
        path: Where they are kept.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path
        self._identity = ""
        self._notes: dict[str, Note] = {}
        self._lock = threading.Lock()
        self._saved = 0.0

    def begin(self, identity: str, notes: Mapping[str, Note]) -> None:
        """Say which conversion it is, and what is known of it."""
        self._identity = identity
        self._notes = dict(notes)

    def record(self, name: str, note: Note) -> None:
        """Note how far a file is."""
        with self._lock:
            self._notes[name] = note
            if time.monotonic() - self._saved >= SAVE_SECONDS:
                self._save()

    def save(self) -> None:
        """Write down what was noted."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        notes = {name: note.as_dict() for name, note in self._notes.items()}
        text = json.dumps({"format": _FORMAT, "identity": self._identity, "files": notes})
        self._fs.pipe_file(self._path, text.encode())
        self._saved = time.monotonic()


def read_notes(fs: Any, path: str, identity: str) -> dict[str, Note]:
    """Return the notes of another process on the same conversion; nothing where they are of another one."""
    try:
        found = json.loads(fs.cat_file(path))
        if (found["format"], found["identity"]) != (_FORMAT, identity):
            return {}
        return {name: Note.from_dict(note) for name, note in found["files"].items()}
    # Notes that cannot be read are none: what they spoke of is written again.
    except (ValueError, KeyError, TypeError):
        return {}


def stamp_of(fs: Any, path: str) -> str:
    """Return what tells a file from one that takes its place later; nothing where it is not there."""
    # A list that fsspec keeps may be older than the file.
    fs.invalidate_cache(path.rpartition("/")[0])
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return ""
    tags = [f"{field}={info[field]}" for field in _TAGS if info.get(field) is not None]
    times = [f"{field}={info[field]}" for field in _TIMES if info.get(field) is not None]
    # Times only where there is no version, as in `storage/fsspec.py`.
    return ":".join([str(info["size"]), *(tags or times)])
