"""What ranks other than 0 write of an output on this machine. Rank 0 makes it, and puts it in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.outputs.durable_file import create_file
from fsdp_migrate.checkpoint_convert.outputs.journal import NOTHING, Journal, Written
from fsdp_migrate.checkpoint_convert.outputs.output import read_first, writing
from fsdp_migrate.checkpoint_convert.outputs.work_folder import WorkFolder
from fsdp_migrate.errors import OutputError, OutputExistsError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.outputs.output import OutputFile
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


class JoinedOutput:
    """An output that rank 0 has begun.

    Args:
        path: Where it is going to be.
        state: What rank 0 says about it.
        rank: The rank of this process, which keeps a journal of its own.
    """

    takes_parts = True
    reads_back = True
    stands: Location | None = None
    kept_others: Sequence[str] = ()

    def __init__(self, path: Path, state: Mapping[str, Any], rank: int) -> None:
        self.path = path.absolute()
        self.url = str(path)
        self.checkpoint_id = str(self.path)
        self._work = WorkFolder(self.path)
        self._journal = Journal(self._work.journal(rank))
        self._earlier = {(name, part): Written(**found) for name, part, found in state["earlier"]}

    def begin(self, identity: str) -> bool:
        """Begin the journal of this rank."""
        if not self._work.content.is_dir():
            msg = (
                f"Rank 0 is writing {self.url!r}, and this rank does not see it. Choose an output on a file "
                "system that all nodes share."
            )
            raise OutputError(msg, path=self.path)
        with writing(self.path):
            self._journal.read()
            self._journal.begin(identity)
        return False

    def prepare(self, names: Iterable[str]) -> None:
        """Leave that to rank 0."""

    def state(self) -> Mapping[str, Any]:
        """Return nothing: rank 0 says it."""
        return {}

    def written(self, name: str, part: int | None = None) -> Written:
        """Return how far an earlier process came."""
        return self._earlier.get((name, part), NOTHING)

    def create(self, name: str, keep: int = 0, part: int | None = None, size: int = 0) -> OutputFile:
        """Open a file for writing, after its first ``keep`` bytes, or from ``part`` on."""
        return create_file(self._work.content / name, self.path / name, keep, part, size)

    def record(self, name: str, written: Written, part: int | None = None) -> None:
        """Note how far a file is in this rank's journal."""
        with writing(self.path):
            self._journal.record(name, written, part)

    def kept(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Yield the first bytes of a file that an earlier process wrote."""
        return read_first(self._work.content / name, nbytes)

    def share(self, folder: Folder, name: str, as_name: str) -> bool:
        """Leave that to rank 0."""
        del folder, name, as_name
        return False

    def commit(self) -> None:
        """Close the journal; rank 0 puts the output in its place."""
        self._journal.close()

    def abort(self, *, keep: bool = False) -> None:
        """Remove what was written, in the place of a rank 0 that is gone; or keep it."""
        self._journal.close()
        if keep:
            return
        try:
            self._work.acquire()
        except (OutputError, OutputExistsError, OSError):
            # Rank 0 is still there after all, and does it.
            return
        self._work.remove()
