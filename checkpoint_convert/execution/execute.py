"""Carry a plan out: read, write, and check what was written."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.arguments import (
    FLAG,
    FUNCTION,
    NOTHING,
    PATH,
    check_arguments,
    instance_of,
    whole_number_from,
)
from fsdp_migrate.checkpoint_convert.execution.identity import (
    check_unchanged,
    conversion_identity,
    holds_what_was_seen,
    layout_digest,
)
from fsdp_migrate.checkpoint_convert.execution.model_folder import settled
from fsdp_migrate.checkpoint_convert.execution.new_values import closing_files, new_values
from fsdp_migrate.checkpoint_convert.execution.placement import Item, Placement, copy_items, place
from fsdp_migrate.checkpoint_convert.execution.ranks import Ranks
from fsdp_migrate.checkpoint_convert.execution.standing import is_what_stands, is_what_was_written
from fsdp_migrate.checkpoint_convert.execution.work import Taken, Work
from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE, Digest, write_checksums
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import RecordRun, StoredChecks
from fsdp_migrate.checkpoint_convert.outputs.opening import join_output, open_output
from fsdp_migrate.checkpoint_convert.planning.merged import check_merged
from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import CheckpointError, CheckpointMismatchError, OutputError
from fsdp_migrate.findings import Finding, counted, listed, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Stored
    from fsdp_migrate.checkpoint_convert.outputs.journal import Written
    from fsdp_migrate.checkpoint_convert.outputs.output import Output
    from fsdp_migrate.checkpoint_convert.planning.plan import Action
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


DEFAULT_BUFFER: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        plan: What was to be done.
        action: How it was done; a plan of ``none`` with an output is a ``relink``.
        output: Where the result lies; None where nothing had to be written.
        bytes_written: The bytes of the data files that were written or copied.
        bytes_linked: The bytes of the data files that the result shares with the source.
        bytes_resumed: Those of ``bytes_written`` that an interrupted conversion had written already.
        findings: What there is to say about it.
    """

    plan: ConversionPlan
    action: Action
    output: str | None
    bytes_written: int
    bytes_linked: int
    findings: tuple[Finding, ...]
    bytes_resumed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            **self.plan.as_dict(),
            "action": self.action,
            "output": self.output,
            "bytes_written": self.bytes_written,
            "bytes_linked": self.bytes_linked,
            "bytes_resumed": self.bytes_resumed,
            "findings": [finding.as_dict() for finding in self.findings],
        }


@within_limits("convert the checkpoint")
def execute_plan(
    plan: ConversionPlan,
    dst: Location,
    *,
    overwrite: bool = False,
    resume: bool = False,
    checksums: bool = False,
    progress: Progress | None = None,
    buffer_bytes: int = DEFAULT_BUFFER,
    ranks: Ranks | None = None,
) -> ConversionReport:
    """Carry out a plan that :func:`plan_conversion` made.

    A plan whose action is ``none`` is carried out as ``relink``: the same entries under new metadata.

    Args:
        plan: The plan.
        dst: The folder to make.
        overwrite: Replace one that is there, once the new one is whole, and what is left of an interrupted
            conversion.
        resume: Go on where an interrupted conversion stopped, if there was one. An interrupt of this one
            then keeps what it did.
        checksums: Also write ``SHA256SUMS``, the checksum of each file. For it, linked files are read.
        progress: Called with a :class:`ProgressEvent` now and then, in this thread.
        buffer_bytes: How much of the data is held in memory at once, over all threads.
        ranks: The ranks that share the work, entered; each calls this with the same arguments, and sees
            the same source and output. Only rank 0 calls ``progress``.

    Raises:
        RankError: Another rank failed; it says which, and why.
        OutputExistsError: ``dst`` is there already, or an interrupted conversion left something and neither
            ``overwrite`` nor ``resume`` was asked for.
        OutputError: It could not be written, or lies in the source, or another process is writing it, or what
            is to be resumed was another conversion. Nothing is left of it.
        CheckpointFormatError: The source turned out to be damaged, or has changed. Nothing is left of
            the output.
    """
    check_arguments(instance_of(ConversionPlan), plan=plan)
    check_arguments(PATH, dst=dst)
    check_arguments(FLAG, overwrite=overwrite, resume=resume, checksums=checksums)
    check_arguments(whole_number_from(0), buffer_bytes=buffer_bytes)
    check_arguments(instance_of(Ranks) | NOTHING, ranks=ranks)
    check_arguments(FUNCTION | NOTHING, progress=progress)
    source = open_folder(plan.manifest.source)
    run = _Run(plan, source, dst, checksums, resume)
    try:
        if ranks is not None:
            # Nothing is made before all are there: what is killed earlier would leave nobody to clean up.
            ranks.gather("ready", {})
        if ranks is not None and ranks.rank != 0:
            return _join(run, ranks, buffer_bytes)
        check_merged(plan.manifest, source)
        opened: list[Output] = []
        try:
            output = open_output(
                dst,
                source=plan.manifest.source,
                overwrite=overwrite,
                resume=resume,
                keeps_others=not plan.is_distributed,
            )
            opened.append(output)
            work = Work(source, output, buffer_bytes, checksums, progress, ranks)
            if ranks is not None:
                ranks.on_failure(lambda error: output.abort(keep=_is_kept(run, error, ranks)))
            return _Execution(run, output, work, ranks).run()
        except BaseException as error:
            # With ranks `on_failure` does that, once all of them have stopped: one may still be writing.
            for output in opened if ranks is None else ():
                output.abort(keep=_is_kept(run, error, None))
            raise
    finally:
        source.close()


@dataclass(frozen=True, slots=True)
class _Run:
    plan: ConversionPlan
    source: Folder
    dst: Location
    checksums: bool
    resume: bool


def _is_kept(run: _Run, error: BaseException, ranks: Ranks | None) -> bool:
    """Tell whether what was done is kept: it is where a conversion that can be gone on with was stopped."""
    was_stopped = not isinstance(error, Exception) or (ranks is not None and ranks.was_stopped)
    return run.resume and was_stopped


class _Execution:
    """A conversion as rank 0 does it, or one process alone."""

    def __init__(self, run: _Run, output: Output, work: Work, ranks: Ranks | None) -> None:
        self._run = run
        self._plan = run.plan
        self._source = run.source
        self._output = output
        self._work = work
        self._ranks = ranks

    def run(self) -> ConversionReport:
        """Write everything, the metadata last, and put it in its place."""
        # The source is looked at before the first byte is written and after the last: what changed between
        # is in the output, and nothing else would tell.
        placement = place(self._plan, new_values(self._plan, self._source))
        linked = [] if self._plan.link == "copy" else list(placement.taken)
        check_unchanged(self._plan.manifest, self._source, linked)
        closing = closing_files(self._plan, placement, self._output)
        # The metadata is made before the first byte is written: what cannot be written down fails here, and
        # its bytes tell this conversion from others.
        identity = conversion_identity(
            self._plan, placement, b"".join(closing.values()), checksums=self._run.checksums
        )
        if self._output.stands is not None and self._is_what_stands(self._output.stands, placement, closing):
            # A conversion that was finished is gone on with by doing nothing.
            outcome = _Outcome(copied=list(placement.taken) if self._plan.link == "copy" else [])
            outcome.linked = sum(self._plan.manifest.files[n] for n in placement.taken if not outcome.copied)
            files = _all_files(self._run, placement, outcome.copied)
            outcome.resumed = sum(item.length for items in files.values() for item in items)
            self._tell("begin", {"is_done": True})
            # Nothing was begun: this lets go of the lock, and leaves what stands.
            self._output.abort()
            self._tell("end", asdict(outcome))
            return _report(self._run, placement, outcome, self._output.url)
        if self._output.begin(identity):
            # An earlier process had only to clean up.
            outcome = _Outcome(linked=sum(self._plan.manifest.files[name] for name in placement.taken))
            outcome.resumed = placement.nbytes
            self._tell("begin", {"is_done": True})
        else:
            outcome = self._write(placement, closing, identity)
        self._output.commit()
        outcome.kept = list(self._output.kept_others)
        self._tell("end", asdict(outcome))
        return _report(self._run, placement, outcome, self._output.url)

    def _write(self, placement: Placement, closing: Mapping[str, bytes], identity: str) -> _Outcome:
        outcome = _Outcome()
        # Links first: a file that cannot be linked is copied, and the ranks divide that work too.
        outcome.linked = self._share_files(placement, outcome.copied)
        files = _all_files(self._run, placement, outcome.copied)
        # Before any rank opens a file: through a link that was made earlier it would write to the source.
        self._output.prepare(files)
        before = [self._output.written(s.file, s.part) for s in self._work.segments(files)]
        outcome.resumed = sum(written.nbytes for written in before)
        begin = {
            "identity": identity,
            "layout": layout_digest(self._plan, placement),
            "copied": outcome.copied,
            "state": self._output.state(),
        }
        self._tell("begin", begin)
        outcome.shares = self._work.shares(files)
        results = self._work.write_files(files)
        for written in results.values():
            for key, count in written.overflows.items():
                outcome.overflows[key] = outcome.overflows.get(key, 0) + count
        self._join_checks(results.values(), outcome)
        if self._run.checksums:
            digests = {name: w.digest for (name, _), w in results.items() if w.digest is not None}
            for name, taken in _take_checksums(self._run, self._work, placement, files).items():
                digests[name] = taken.digest
                outcome.agreed, outcome.bare = outcome.agreed + taken.agreed, outcome.bare + taken.bare
            self._write_checksums(digests, closing)
        # Last: `.metadata` and indexes make a folder a checkpoint, so that half of one looks like none.
        for name, data in closing.items():
            with self._output.create(name) as file:
                file.write(data)
        # Without the times of change of linked files' inodes: making the links has set them.
        linked = [name for name in placement.taken if name not in outcome.copied]
        check_unchanged(
            self._plan.manifest, self._source, linked, is_same=lambda names: self._is_as_read(names, files)
        )
        return outcome

    def _is_as_read(self, names: Collection[str], files: Mapping[str, Sequence[Item]]) -> bool:
        """Tell whether files of the source hold what was read of them, for the plan and while writing."""
        if not self._output.reads_back:
            return False
        try:
            is_seen = holds_what_was_seen(self._plan.manifest, self._source, names)
            return is_seen and is_what_was_written(self._output, self._source, files)
        except CheckpointError:  # what is there now is no checkpoint: then it is another
            return False

    def _is_what_stands(self, place: Location, placement: Placement, closing: Mapping[str, bytes]) -> bool:
        files = _all_files(self._run, placement, list(placement.taken))
        linked = {new: old for old, new in placement.taken.items()}
        return is_what_stands(place, self._source, files, linked, closing, checksums=self._run.checksums)

    def _join_checks(self, results: Iterable[Written], outcome: _Outcome) -> None:
        """Compare records that several threads, ranks or processes read between them."""
        checks = StoredChecks(self._source)
        runs: list[RecordRun] = []
        for written in results:
            checks.agreed_on(written.agreed, written.bare)
            runs += [RecordRun(*run) for run in written.runs]
        outcome.unknown = checks.join(runs)
        outcome.agreed, outcome.bare = checks.agreed, checks.bare

    def _tell(self, topic: str, value: Mapping[str, Any]) -> None:
        if self._ranks is not None:
            self._ranks.publish(topic, value)

    def _share_files(self, placement: Placement, copied: list[str]) -> int:
        """Share data files with the source where that can be; return how many bytes are, list the others."""
        linked = 0
        for name, as_name in placement.taken.items():
            if self._plan.link != "copy" and self._output.share(self._source, name, as_name):
                linked += self._plan.manifest.files[name]
            elif self._plan.link == "hard":
                msg = (
                    f"'{self._source.url}/{name}' cannot be linked into {self._output.url!r}: they lie on "
                    "different file systems, or links are not allowed there. Use link='copy' or 'auto'."
                )
                raise OutputError(msg, path=f"{self._output.url}/{as_name}")
            else:
                copied.append(name)
        return linked

    def _write_checksums(self, digests: Mapping[str, str], closing: Mapping[str, bytes]) -> None:
        found = dict(digests)
        for name, data in closing.items():
            own = Digest()
            own.update(data)
            found[name] = own.hex()
        with self._output.create(CHECKSUMS_FILE) as file:
            file.write(write_checksums(found))


def _join(run: _Run, ranks: Ranks, buffer_bytes: int) -> ConversionReport:
    """Do what a rank other than 0 does: its share of the writing."""
    placement = place(run.plan, new_values(run.plan, run.source))
    begin = ranks.receive("begin")
    if not begin.get("is_done"):
        if begin["layout"] != layout_digest(run.plan, placement):
            msg = (
                f"What this rank sees at {run.source.url!r} is not what rank 0 sees, or it was given other "
                "options. Start all ranks with the same command, on a source that all of them share."
            )
            raise CheckpointMismatchError(msg, path=run.source.url)
        output = join_output(run.dst, begin["state"], ranks.rank)
        ranks.on_failure(lambda error: output.abort(keep=_is_kept(run, error, ranks)))
        output.begin(begin["identity"])
        work = Work(run.source, output, buffer_bytes, run.checksums, None, ranks)
        files = _all_files(run, placement, begin["copied"])
        work.write_files(files)
        if run.checksums:
            _take_checksums(run, work, placement, files)
        output.commit()
    outcome = _Outcome(**ranks.receive("end"))
    return _report(run, placement, outcome, os.fspath(run.dst))


def _all_files(run: _Run, placement: Placement, copied: Sequence[str]) -> dict[str, Sequence[Item]]:
    """Return the items of all files that are written.

    Files that are copied whole are data that cannot be shared, and the user's other files. The latter are
    copied even where data files are linked, because people edit such files in place.
    """
    manifest = run.plan.manifest
    sizes = {**manifest.files, **manifest.extra_files}
    stored = _stored_in(run.plan, set(copied))
    copies = {placement.taken[name]: copy_items(name, sizes[name], stored[name]) for name in copied}
    extra = (name for name in run.plan.extra_files if not run.source.leads_outside(name))
    copies.update({name: copy_items(name, sizes[name]) for name in extra})
    return {**placement.files, **copies}


def _stored_in(plan: ConversionPlan, files: Collection[str]) -> Mapping[str, list[Stored]]:
    """Return the archives that lie in files."""
    found: dict[str, list[Stored]] = {name: [] for name in files}
    for entry in plan.manifest.entries.values() if files else ():
        for stored in entry.items:
            if stored.file in found and stored.raw is None and stored.length:
                found[stored.file].append(stored)
    return found


def _take_checksums(
    run: _Run, work: Work, placement: Placement, files: Mapping[str, Sequence[Item]]
) -> dict[str, Taken]:
    """Take the checksums of what was not written in one go: linked files, and files written in parts."""
    sizes = run.plan.manifest.files
    shared = {old: new for old, new in placement.taken.items() if new not in files}
    stored = _stored_in(run.plan, shared)
    linked = {new: copy_items(old, sizes[old], stored[old]) for old, new in shared.items()}
    parts = {s.file for s in work.segments(files) if not s.is_whole}
    return work.take_checksums(linked, {name: sum(i.length for i in files[name]) for name in sorted(parts)})


@dataclass(slots=True)
class _Outcome:
    linked: int = 0
    resumed: int = 0
    copied: list[str] = field(default_factory=list)
    overflows: dict[str, int] = field(default_factory=dict)
    shares: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    agreed: int = 0
    bare: int = 0
    unknown: int = 0


def _report(run: _Run, placement: Placement, outcome: _Outcome, url: str) -> ConversionReport:
    files = _all_files(run, placement, outcome.copied)
    return ConversionReport(
        plan=run.plan,
        action="relink" if run.plan.action == "none" else run.plan.action,
        output=url,
        bytes_written=sum(item.length for items in files.values() for item in items),
        bytes_linked=outcome.linked,
        findings=(*settled(run.plan, outcome.kept), *_own_findings(run, outcome, url)),
        bytes_resumed=outcome.resumed,
    )


def _say_checks(outcome: _Outcome, unread: int) -> tuple[str, str]:
    """Say which bytes of a source nothing was compared of, and what to do about it."""
    kinds = (
        (unread, "were linked and not read"),
        (outcome.bare, "carry no checksum"),
        (outcome.unknown, "are of records that were read in part"),
    )
    text = ", ".join(f"{nbytes} bytes {what}" for nbytes, what in kinds if nbytes)
    hint = "`inspect --deep` reads everything." if unread or outcome.unknown else ""
    return f"{text}; {outcome.agreed} bytes agree with the checksums that torch.save stored.", hint


def _own_findings(run: _Run, outcome: _Outcome, url: str) -> list[Finding]:
    found = [
        make_finding("FM206", key, f"{counted(count, 'value')}.", "Use bf16 or fp32.")
        for key, count in sorted(outcome.overflows.items())
    ]
    outside = [n for n in run.plan.extra_files if run.source.leads_outside(n)]
    if outside:
        found.append(
            make_finding(
                "FM212", run.source.url, f"{named(outside, len(outside))}: links to something outside."
            )
        )
    unread = 0 if run.checksums else outcome.linked
    if unread or outcome.bare or outcome.unknown:
        found.append(make_finding("FM283", run.source.url, *_say_checks(outcome, unread)))
    if outcome.kept:
        found.append(make_finding("FM282", url, f"{named(outcome.kept, 8)}."))
    if outcome.shares:
        shares = listed((f"rank {rank}: {nbytes} bytes" for rank, nbytes in enumerate(outcome.shares)), 8)
        found.append(make_finding("FM265", url, f"{shares}."))
    if outcome.copied and run.plan.link == "auto":
        found.append(make_finding("FM218", run.source.url, f"{named(outcome.copied, 8)}."))
    return found
