"""Outputs behind fsspec URLs, where folders cannot be renamed and nothing can be linked.

Object stores show an object once it is whole. So a new output is written where it is to be, and ``.metadata``
comes last: without it nothing is a checkpoint. Until then ``.conversion-in-progress`` says who is at work and
on what; beside it are the notes from which another process goes on. One that replaces another is made in
``OUT.partial-conversion``, and the old one is kept in ``OUT.old-conversion`` until the new one is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.outputs.journal import NOTHING, Written
from fsdp_migrate.checkpoint_convert.outputs.kept_files import is_weights
from fsdp_migrate.checkpoint_convert.outputs.object_store_files import (
    RemoteFile,
    S3File,
    Uploads,
    kept_parts,
    part_bytes,
)
from fsdp_migrate.checkpoint_convert.outputs.object_store_journal import (
    Note,
    RemoteJournal,
    read_notes,
    stamp_of,
)
from fsdp_migrate.checkpoint_convert.outputs.object_store_tree import (
    LAST,
    copy_files,
    copy_folder,
    create_alone,
    files_below,
    is_there,
    remove_files,
    remove_folder,
)
from fsdp_migrate.checkpoint_convert.outputs.output import already_there
from fsdp_migrate.checkpoint_convert.outputs.work_folder import SUFFIX
from fsdp_migrate.checkpoint_convert.storage.errors import writing_to
from fsdp_migrate.checkpoint_convert.storage.folders import is_url
from fsdp_migrate.checkpoint_convert.storage.fsspec import resolve_url
from fsdp_migrate.checkpoint_convert.storage.listing import BUSY_FILE, is_flat
from fsdp_migrate.checkpoint_convert.storage.model_files import FULL_MODEL, MODEL_CONFIG
from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.outputs.output import OutputFile
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


_JOURNAL: Final = f"{BUSY_FILE}-journal-"
_OLD: Final = ".old-conversion"
_REPLACING: Final = "replacing"
_S3: Final = frozenset({"s3", "s3a"})


class _Writer:
    """What every rank does: whole files, written where rank 0 says."""

    takes_parts = False
    stands: Location | None = None
    reads_back = False

    def __init__(self, url: str, *, resume: bool, rank: int = 0) -> None:
        self.url = self.checkpoint_id = url.rstrip("/")
        self._fs, self._root = resolve_url(self.url)
        self._uploads = Uploads(self._fs) if _is_s3(self._fs) else None
        self._resume = resume
        self._rank = rank
        self._earlier: dict[str, Note] = {}
        self._files: dict[str, S3File] = {}
        self.kept_others: Sequence[str] = ()
        self._place(self._root)

    def _place(self, target: str) -> None:
        self._target = target
        self._journal = RemoteJournal(self._fs, f"{target}/{_JOURNAL}{self._rank}")

    def begin(self, identity: str) -> bool:
        """Begin the notes of this rank."""
        self._journal.begin(identity, {})
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Make the folders, where the service has any."""
        folders = {f"{self._target}/{name}".rpartition("/")[0] for name in names}
        with writing_to(self.url):
            for folder in sorted(folders):
                self._make_folder(folder)

    def _make_folder(self, path: str) -> None:
        """Make a folder, but no bucket: one that is not there is somebody's slip."""
        if not is_flat(self._fs):
            self._fs.makedirs(path, exist_ok=True)

    def state(self) -> Mapping[str, Any]:
        """Return where files are written, and how far an earlier process came."""
        notes = {name: note.as_dict() for name, note in self._earlier.items()}
        return {"target": self._target, "resume": self._resume, "earlier": notes}

    def written(self, name: str, part: int | None = None) -> Written:
        """Return how far an earlier process came with a file, if what it wrote is still there."""
        note = self._earlier.get(name)
        if note is None or part is not None:
            return NOTHING
        path = f"{self._target}/{name}"
        with writing_to(f"{self.url}/{name}"):
            if note.written.is_done:
                return note.written if stamp_of(self._fs, path) == note.stamp else NOTHING
            if self._uploads is None or note.upload is None:
                return NOTHING
            found = kept_parts(self._uploads.parts(path, note.upload), note.written.nbytes)
        return note.written if found is not None else NOTHING

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note how far a file is."""
        del part
        path = f"{self._target}/{name}"
        with writing_to(f"{self.url}/{name}"):
            if written.is_done:
                self._files.pop(name, None)
                self._journal.record(name, Note(written, stamp=stamp_of(self._fs, path)))
            else:
                self._journal.record(name, Note(written, upload=self._files[name].upload))

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield nothing: parts of a file cannot be read."""
        del name, nbytes
        return iter(())

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a file for writing, after its first ``keep`` bytes; it is there once it is closed."""
        if part is not None:
            raise AssertionError("Files behind URLs are written in one go.")
        path, url = f"{self._target}/{name}", f"{self.url}/{name}"
        with writing_to(url):
            if self._uploads is None:
                return RemoteFile(self._fs.open(path, "wb", block_size=part_bytes(size)), url)
            note = self._earlier.get(name)
            upload = None if note is None else note.upload
            if upload is not None and not keep:
                self._uploads.give_up(path, upload)
                upload = None
            file = S3File(self._uploads, path, url, size, upload=upload, keep=keep, stay=self._resume)
        self._files[name] = file
        return file

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Say that bytes cannot be shared here."""
        del folder, name, as_name
        return False

    def commit(self) -> None:
        """Leave that to rank 0."""
        self._close()

    def abort(self, *, keep: bool = False) -> None:
        """Leave what is there to rank 0, or to the next conversion."""
        self._close()
        if keep:
            with contextlib.suppress(Exception):
                self._journal.save()

    def _close(self) -> None:
        if self._uploads is not None:
            self._uploads.close()


class JoinedFsspecOutput(_Writer):
    """What ranks other than 0 write of an output behind a URL."""

    def __init__(self, url: str, state: Mapping[str, Any], rank: int) -> None:
        super().__init__(url, resume=state["resume"], rank=rank)
        self._place(state["target"])
        self._earlier = {name: Note.from_dict(note) for name, note in state["earlier"].items()}


class FsspecOutput(_Writer):
    """An output behind an fsspec URL."""

    # What conversions of this process are at work on, wherever they are.
    _active: Final[set[str]] = set()

    def __init__(
        self,
        url: str,
        *,
        source: str,
        overwrite: bool,
        resume: bool = False,
        keeps_others: bool = False,
    ) -> None:
        if is_url(source):
            _check_urls_apart(url.rstrip("/"), source.rstrip("/"))
        super().__init__(url, resume=resume)
        self._keeps_others = keeps_others
        self._mark = uuid.uuid4().hex[:12]
        self._names: set[str] = set()
        self._is_begun = False
        self._left: dict[str, Any] | None = None
        with writing_to(self.url):
            self._replaces = self._look(overwrite=overwrite)
        if self._replaces:
            self._place(self._root + SUFFIX)

    def begin(self, identity: str) -> bool:
        """Say who is at work; of two that begin at once, one does not.

        Raises:
            OutputError: Another one was faster, or what is to be gone on with is another conversion.
            OutputExistsError: What is there is not what this conversion would write.
        """
        if self.stands is not None:
            raise already_there(self.url)
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "conversion": self._mark,
            "identity": identity,
            "phase": "" if self._left is None else self._left.get("phase", ""),
        }
        path = f"{self._target}/{BUSY_FILE}"
        with writing_to(self.url):
            if self._left is not None:
                self._take_over(identity)  # before the mark, which says that it is this one's
                self._fs.pipe_file(path, json.dumps(about).encode())
            else:
                self._make_folder(self._target)
                try:
                    create_alone(self._fs, path, json.dumps(about).encode())
                except FileExistsError as error:
                    # An answer that was lost, and the request sent again, look like this, too.
                    if not self._is_own():
                        raise _at_work(self.url) from error
        self._about = about
        self._is_begun = True
        self._active.add(self._mark)
        self._journal.begin(identity, self._earlier)
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Make the folders, where the service has any, and note what will be written."""
        self._names.update(names)
        super().prepare(self._names)

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a file for writing; it is there once it is closed."""
        if name not in self._names:
            self.prepare([name])
        if name.endswith(LAST):
            self._check_own()
        return super().create(name, keep, part, size)

    def commit(self) -> None:
        """Finish; where an old output is replaced, it is kept until the new one is whole."""
        self._check_own()
        if self._replaces:
            self._replace()
        with contextlib.suppress(OSError):
            # What says that somebody was at work goes last.
            busy = f"{self._target}/{BUSY_FILE}"
            done = files_below(self._fs, self._target) if self._replaces else self._journals(self._target)
            remove_files(self._fs, self._target, (path for path in done if path != busy))
            self._fs.rm_file(busy)
        if self._replaces:
            self._remove(self._target)
        self._active.discard(self._mark)
        self._close()

    def abort(self, *, keep: bool = False) -> None:
        """Remove everything that was written, or keep it."""
        self._active.discard(self._mark)
        self._close()
        if not self._is_begun:
            return
        if keep:
            super().abort(keep=True)
            return
        with contextlib.suppress(Exception):
            # What somebody else has taken over, or has finished since, is theirs.
            if self._is_own():
                self._remove_left(self._target)

    def _look(self, *, overwrite: bool) -> bool:
        """Look at what is there; return whether it is a checkpoint that is to be replaced."""
        self._fs.invalidate_cache()
        beside = self._root + SUFFIX
        # Beside first: while an old output is replaced both have the file, and only that one says who.
        left_at = next((path for path in (beside, self._root) if self._busy(path) is not None), None)
        if left_at is not None:
            self._left = self._busy(left_at)
            self._check_idle()
            if not self._resume and not overwrite:
                raise _at_work(self.url)
            if not self._resume:
                self._undo_replacing()
                self._remove_left(left_at)
                self._left = None
        if left_at == self._root and self._left is not None:
            return False
        is_there = self._look_at_old(overwrite=overwrite)
        return is_there or (left_at == beside and self._left is not None)

    def _look_at_old(self, *, overwrite: bool) -> bool:
        """Tell whether there is a checkpoint that may be replaced."""
        if not is_there(self._fs, self._root):
            return False
        if not is_flat(self._fs) and not files_below(self._fs, self._root):
            return False  # a process died before it wrote anything
        if not overwrite:
            if self._resume and self._left is None:
                # It may be what this very conversion made, which only its bytes tell.
                self.stands = self.url
                return False
            raise already_there(self.url)
        names = [path.rpartition("/")[2] for path in files_below(self._fs, self._root)]
        is_replacing = self._left is not None and self._left.get("phase") == _REPLACING
        known = {METADATA_FILE, FULL_MODEL, *((MODEL_CONFIG,) if self._keeps_others else ())}
        if not is_replacing and not any(n in known or n.endswith(".safetensors") for n in names):
            msg = (
                f"{self.url!r} is there already, and is no checkpoint: it holds no `.metadata` and no "
                "safetensors. It is not overwritten, because something else would be deleted. Choose another "
                "output, or remove it yourself."
            )
            raise OutputExistsError(msg, path=self.url)
        return True

    def _busy(self, folder: str) -> dict[str, Any] | None:
        """Return what an unfinished conversion says about itself."""
        try:
            said = self._fs.cat_file(f"{folder}/{BUSY_FILE}")
        except FileNotFoundError:
            return None
        try:
            found = json.loads(said)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _check_idle(self) -> None:
        """Refuse to go on with, or to remove, what a process of this machine is at work on."""
        left = self._left or {}
        # Nobody can ask another machine whether a process runs: the user says so, by `resume` or `overwrite`.
        if left.get("host") != socket.gethostname():
            return
        pid = left.get("pid")
        is_own = pid == os.getpid()
        if left.get("conversion") in self._active or (not is_own and _is_alive(pid)):
            raise _at_work(self.url)

    def _take_over(self, identity: str) -> None:
        """Read what the process before noted."""
        if (self._left or {}).get("identity") != identity:
            msg = (
                f"What is left of a conversion into {self.url!r} is of another source, or was made with "
                "other options, or the source has changed since. It cannot be continued. Give the same "
                "options, or start again with `overwrite` (--overwrite) and without `resume` (--resume)."
            )
            raise OutputError(msg, path=self.url)
        for path in self._journals(self._target):
            for name, note in read_notes(self._fs, path, identity).items():
                known = self._earlier.get(name)
                if known is None or _is_further(note, known):
                    self._earlier[name] = note
        self._give_up_uploads(self._target, {note.upload for note in self._earlier.values()})

    def _give_up_uploads(self, folder: str, known: set[str | None]) -> None:
        """Remove the parts of files that nobody goes on with. Who may not list them leaves them to S3."""
        if self._uploads is not None:
            with contextlib.suppress(Exception):
                for path, upload in self._uploads.unfinished(folder):
                    if upload not in known:
                        self._uploads.give_up(path, upload)

    def _journals(self, folder: str) -> list[str]:
        return [p for p in files_below(self._fs, folder) if p.rpartition("/")[2].startswith(_JOURNAL)]

    def _is_own(self) -> bool:
        return (self._busy(self._target) or {}).get("conversion") == self._mark

    def _check_own(self) -> None:
        """Refuse to finish what another process has taken over."""
        with writing_to(self.url):
            if not self._is_own():
                msg = f"Another conversion has taken {self.url!r} over. Only one can write it."
                raise OutputError(msg, path=self.url)

    def _replace(self) -> None:
        """Put the new output where the old one is. What a killed process did of that can be done again."""
        old = self._root + _OLD
        with writing_to(self.url):
            if self._about["phase"] != _REPLACING:
                remove_folder(self._fs, old)
                copy_folder(self._fs, self._root, old)
                # Only now: from here on the old one may go, because a whole copy of it is there.
                self._set_phase(_REPLACING)
            try:
                with self._half() as busy:
                    self._remove_old(busy)
                    copy_files(self._fs, self._target, self._root, self._names)
            except BaseException:
                self._left = self._about
                self._undo_replacing()
                raise
        self._remove(old)

    def _remove_old(self, busy: str) -> None:
        """Remove the old output, or its weights, where the rest of a model's folder stays."""
        if not self._keeps_others:
            remove_folder(self._fs, self._root, keep=busy)
            return
        names = {path: path.removeprefix(f"{self._root}/") for path in files_below(self._fs, self._root)}
        remove_files(self._fs, self._root, (path for path, name in names.items() if is_weights(name)))
        others = (
            name for name in names.values() if not is_weights(name) and name not in {*self._names, BUSY_FILE}
        )
        self.kept_others = (*self.kept_others, *others)

    def _set_phase(self, phase: str) -> None:
        self._about["phase"] = phase
        self._fs.pipe_file(f"{self._target}/{BUSY_FILE}", json.dumps(self._about).encode())

    def _undo_replacing(self) -> None:
        """Put the old output back, where it was about to be replaced."""
        old = self._root + _OLD
        if self._left is None or self._left.get("phase") != _REPLACING or not is_there(self._fs, old):
            return
        with self._half() as busy:
            with contextlib.suppress(OSError):
                remove_folder(self._fs, self._root, keep=busy)
            names = [path.removeprefix(f"{old}/") for path in files_below(self._fs, old)]
            copy_files(self._fs, old, self._root, names)
        self._remove(old)

    @contextlib.contextmanager
    def _half(self) -> Iterator[str]:
        """Say meanwhile, in a file whose path is given, that what is in the output's place is not whole."""
        busy = f"{self._root}/{BUSY_FILE}"
        self._fs.pipe_file(busy, b"{}")
        # No `finally`: after an error what is there is still not whole.
        yield busy
        self._fs.rm_file(busy)

    def _remove_left(self, folder: str) -> None:
        """Remove what an unfinished conversion wrote, and the parts of files that it sent."""
        self._give_up_uploads(folder, set())
        self._remove(folder)

    def _remove(self, path: str) -> None:
        """Remove a folder as far as that can be done; what is left of it is no checkpoint."""
        with contextlib.suppress(OSError):
            remove_folder(self._fs, path)


def _is_s3(fs: Any) -> bool:
    own = fs.protocol
    return not _S3.isdisjoint([own] if isinstance(own, str) else own)


def _is_further(one: Note, other: Note) -> bool:
    """Tell whether a note was made after another one."""
    return (one.written.is_done, one.written.nbytes) > (other.written.is_done, other.written.nbytes)


def _is_alive(pid: object) -> bool:
    """Tell whether a process of this machine is running."""
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _at_work(url: str) -> OutputError:
    msg = (
        f"Another conversion is writing {url!r} at the moment, or was killed while it did: "
        f"`{BUSY_FILE}` is there. If none is running, continue it with `resume` (--resume), or start again "
        "with `overwrite` (--overwrite)."
    )
    return OutputError(msg, path=url)


def _check_urls_apart(url: str, source: str) -> None:
    if f"{url}/".startswith(f"{source}/") or f"{source}/".startswith(f"{url}/"):
        raise OutputError(f"The output {url!r} and the source {source!r} lie in each other.", path=url)
