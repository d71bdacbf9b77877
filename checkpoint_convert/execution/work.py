"""Write the data files of an output, and take checksums, alone or together with other ranks."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fsdp_migrate.checkpoint_convert.execution.file_writer import FileWriter
from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from fsdp_migrate.checkpoint_convert.execution.segments import Segment, cut_segments, divide_segments
from fsdp_migrate.checkpoint_convert.formats.checksums import Digest
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
from fsdp_migrate.checkpoint_convert.outputs.journal import Written
from fsdp_migrate.checkpoint_convert.outputs.object_store_tree import LAST
from fsdp_migrate.checkpoint_convert.storage.folders import is_url
from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent
from fsdp_migrate.checkpoint_convert.storage.threads import Advance, run_workers


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.execution.placement import Item
    from fsdp_migrate.checkpoint_convert.execution.ranks import Ranks
    from fsdp_migrate.checkpoint_convert.outputs.output import Output
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


_MAX_THREADS: Final = 8
# While one waits for the disk, another has the core.
_THREADS_PER_CORE: Final = 3
# Where most of the time is spent waiting for a service.
_REMOTE_THREADS: Final = 8
_COPY: Final = 8 << 20


class Taken(NamedTuple):
    """The checksum of a file, and how many of its bytes agree with those of torch.save or have none."""

    digest: str
    agreed: int
    bare: int


Results = dict[tuple[str, int | None], Written]


@dataclass(slots=True)
class Work:
    """What one process does of a conversion.

    Attributes:
        source: Where data come from.
        output: What is written.
        buffer_bytes: How much is held in memory at once, over all threads.
        checksums: Whether checksums are wanted.
        progress: Called as the work gets on, on rank 0.
        ranks: The ranks that share it; None where it is done alone.
    """

    source: Folder
    output: Output
    buffer_bytes: int
    checksums: bool
    progress: Progress | None
    ranks: Ranks | None
    _phase: int = 0
    _last: ProgressEvent | None = None
    _before: tuple[int, int] = (0, 0)

    def segments(self, files: Mapping[str, Sequence[Item]]) -> list[Segment]:
        """Return the segments in which files are written; the same on every rank."""
        return cut_segments(files, whole_files=not self.output.takes_parts)

    def shares(self, files: Mapping[str, Sequence[Item]]) -> list[int]:
        """Return how many bytes each rank writes; nothing where one process does it alone."""
        if self.ranks is None:
            return []
        divided = divide_segments(self.segments(files), self.ranks.world_size)
        return [sum(segment.nbytes for segment in part) for part in divided]

    def write_files(self, files: Mapping[str, Sequence[Item]]) -> Results:
        """Write this rank's share of the data files; return what all ranks wrote, on rank 0.

        Where files show as soon as they are whole, those that make a checkpoint of the others come last.
        """
        # Behind URLs there is no rename at the end: what makes a checkpoint of the files comes in a round of
        # its own, once all ranks have written the others.
        last = {} if self.output.takes_parts else {n: i for n, i in files.items() if n.endswith(LAST)}
        found = self._write_round({name: items for name, items in files.items() if name not in last})
        return {**found, **self._write_round(last)} if last else found

    def _write_round(self, files: Mapping[str, Sequence[Item]]) -> Results:
        segments = self.segments(files)
        threads = self._threads(len(segments))
        writer = FileWriter(
            self.source, self.output, max(self.buffer_bytes // threads, 1), checksums=self.checksums
        )
        self._run(
            segments,
            lambda s, advance: writer.write(s, files[s.file][s.first : s.stop], advance),
            message="writing",
            threads=threads,
        )
        own: list[Any] = [[name, part, asdict(written)] for (name, part), written in writer.results.items()]
        found: Results = {}
        for name, part, written in self._gather(own):
            found[name, part] = Written(**written)
        return found

    def take_checksums(
        self, sources: Mapping[str, Sequence[Item]], outputs: Mapping[str, int]
    ) -> dict[str, Taken]:
        """Return the checksums of files, on rank 0.

        Args:
            sources: What files consist of that are shared with the source, by their names in the output. They
                are compared with the checksums that torch.save stored, so that no damage is certified.
            outputs: Files of the output that were written in parts, with their sizes.

        Raises:
            CheckpointFormatError: A file of the source is damaged.
        """
        found: dict[str, Taken] = {}
        sizes = {**{name: sum(i.length for i in items) for name, items in sources.items()}, **outputs}

        def work(segment: Segment, advance: Advance) -> None:
            name, digest, checks = segment.file, Digest(), StoredChecks(self.source)
            writer = ItemWriter(self.source, _COPY, advance, {}, checks)
            for item in sources.get(name, ()):
                writer.write(item, digest)
            for data in self.output.kept(name, segment.nbytes) if name in outputs else ():
                digest.write(data)
                advance(len(data))
            found[name] = Taken(digest.hex(), checks.agreed, checks.bare)

        tasks = [Segment(name, 0, 0, 0, size, is_whole=True) for name, size in sorted(sizes.items())]
        self._run(tasks, work, message="taking checksums", threads=self._threads(len(tasks)))
        rows = self._gather([[name, *taken] for name, taken in found.items()])
        return {name: Taken(*taken) for name, *taken in rows}

    def _threads(self, tasks: int) -> int:
        is_remote = is_url(self.source.url) or not self.output.takes_parts
        local = min(_THREADS_PER_CORE * self._cores(), _MAX_THREADS)
        return max(min(tasks, _REMOTE_THREADS if is_remote else local), 1)

    def _cores(self) -> int:
        """Return how many cores are this process's: those that it is bound to, or its share of a node's."""
        cores = len(os.sched_getaffinity(0))
        # Cores that a launcher has bound the process to are its own; otherwise the ranks of a node see all of
        # them, and share them.
        if self.ranks is None or cores < (os.cpu_count() or 1):
            return cores
        return max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)

    def _run(
        self,
        tasks: Sequence[Segment],
        work: Callable[[Segment, Advance], None],
        *,
        message: str,
        threads: int,
    ) -> None:
        """Do this rank's share of some tasks."""
        mine: Collection[Segment] = tasks
        progress, check = self.progress, None
        if self.ranks is not None:
            mine = divide_segments(tasks, self.ranks.world_size)[self.ranks.rank]
            # Ranks count on from round to round; of this round is what is added from here on.
            self._before = self.ranks.done_bytes, self.ranks.others_done
            progress, check = self._report, self.ranks.check
        run_workers(
            mine,
            work,
            threads=min(threads, max(len(mine), 1)),
            total_bytes=sum(task.nbytes for task in tasks),
            message=message,
            progress=progress,
            check=check,
        )

    def _gather(self, rows: list[Any]) -> list[Any]:
        """Return the rows of all ranks on rank 0, which waits for them, and nothing on the others."""
        if self.ranks is None:
            return rows
        self._phase += 1
        found = self.ranks.gather(f"rows/{self._phase}", {"rows": rows}, self._follow)
        # What comes next reads what all ranks wrote.
        if found is None:
            self.ranks.receive(f"phase/{self._phase}")
        else:
            self.ranks.publish(f"phase/{self._phase}", {})
        if self.progress is not None and self._last is not None:
            last = self._last
            self.progress(ProgressEvent(last.total_bytes, last.total_bytes, last.message))
        return [row for one in found or () for row in one["rows"]]

    def _report(self, event: ProgressEvent) -> None:
        """Tell the others how far this rank is, and the user how far all are."""
        assert self.ranks is not None
        self._last = event
        self.ranks.done_bytes = self._before[0] + event.done_bytes
        self._follow()

    def _follow(self) -> None:
        event = self._last
        if self.progress is not None and self.ranks is not None and event is not None:
            done = event.done_bytes + self.ranks.others_done - self._before[1]
            self.progress(ProgressEvent(min(done, event.total_bytes), event.total_bytes, event.message))
