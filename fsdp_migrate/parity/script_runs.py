"""``compare_scripts``: a script as it was under FSDP1, and as it is under FSDP2, run one after the other."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.errors import ConfigError, RankError
from fsdp_migrate.findings import counted, listed
from fsdp_migrate.parity.enlarging import not_shown
from fsdp_migrate.parity.left_files import compare_left, differ_as_own
from fsdp_migrate.parity.left_records import SUFFIXES, Records, compare_records
from fsdp_migrate.parity.of_each_run import name_alike
from fsdp_migrate.parity.printed_lines import MOST_LINES, Run, most_pairs, printed_lines, shown_line
from fsdp_migrate.parity.report import place, read_difference
from fsdp_migrate.parity.script_report import (
    Checkpoints,
    ScriptReport,
    Stateless,
    Unsharded,
    is_rounding,
    told_apart,
)
from fsdp_migrate.parity.watching import FOUND, KEPT, ROUNDED, STEPS, WITH
from fsdp_migrate.source.checkpoint_runs import copied_first


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.parity.report import Difference


OUT = re.compile(r"\bOUT\b")  # what stands in the command for a new folder of each run
_CKPT = re.compile(r"\bCKPT\b")  # and for the checkpoint that it goes on from
_WHOLE = "FSDP_MIGRATE_WHOLE"  # asks the module in `at_start` to have FSDP1 shard nothing

_FIRST, _SECOND, _AGAIN, _UNSHARDED, _ROUNDED = "first", "second", "again", "unsharded", "rounded"
# By whether FSDP1 that shards nothing is near FSDP1 with shards, and near FSDP2.
_UNSHARDEDS: dict[tuple[bool | None, bool | None], Unsharded] = {
    (False, True): "FSDP2",
    (True, False): "FSDP1",
    (False, False): "neither",
}
SECONDS_BETWEEN = 20.0
"""After how many seconds each it is said how far a run is."""
_MOST_DIFFERENCES, _MOST_FILES, _LAST_LINES, _MOST_UNREAD = 200, 20, 15, 6
_MOST_BYTES = 64 << 20
_NO_FILES = "Files were not compared: the command has no `OUT`."
_NO_FSDP1 = "The first run trains no model with FSDP1: BEFORE is to be the project as it was."
_UNREAD = "Written by both, with other bytes, and in no form that is compared"
_NOT_AGAIN = "Whether FSDP1's run differs from itself is not known, because its second run failed:"
_NOT_ROUNDED = "Whether FSDP1's run parts from itself as much is not known, because its last run failed:"
_OWN = "FSDP1's own run, with gradients rounded otherwise, does not part by as much at"
_AT_START = Path(__file__).parent / "at_start"
_RANK = re.compile(r"\[rank\d+\]: ?")
_TRACEBACK = re.compile(rf"(?:{_RANK.pattern})?Traceback \(most recent call last\)")
_FRAME = re.compile(r'  File "')
_INSTALLED = re.compile(r'"<|[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib[\\/]python3')
# The last one is torch.multiprocessing's, above what the process raised that it started.
_CHAINED = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception"
    r"|-- Process \d+ terminated with the following error)"
)
_MOST_FRAMES = 12
# What follows a message: the next traceback, the launcher's log, or what another rank says.
_LAUNCHERS = re.compile(rf"[WE]\d{{4}} |{_TRACEBACK.pattern}|{_RANK.pattern}|\[default\d+\]:")
_ABORTS, _LOST, _TRIES = "terminate called", "ChildFailedError: ", 3


class _AbortError(RankError):
    """gloo ended a process, as it does now and then where one rank leaves before another."""


@dataclass(frozen=True)
class Comparison:
    """What runs, and where: each run has a folder of its own in ``work``. ``say`` is told how far it is."""

    command: tuple[str, ...]
    steps: int
    work: Path
    say: Callable[[str], None] = lambda words: None

    def run(
        self,
        folder: Path,
        name: str,
        *,
        against: Sequence[str] = (),
        keeps: bool = False,
        asks: str | None = None,
        checkpoint: str | None = None,
    ) -> Run:
        """Run the command, keep its steps for others, and compare them with those that another one kept.

        ``asks`` is a variable of the environment that changes how FSDP1 trains.
        """
        given = {STEPS: str(self.steps)}
        if against:
            given[WITH] = os.pathsep.join(str(self.work / each / "kept") for each in against)
        if asks is not None:
            given[asks] = "1"
        # The same for every run: scripts write the paths of their files into files.
        out, own = self.work / "out", self.work / name
        words = [OUT.sub(lambda _: str(out), each) for each in self.command]
        if checkpoint is not None:
            words = [_CKPT.sub(lambda _: checkpoint, each) for each in words]
        tries, printed = _TRIES, tuple[str, ...]()
        while True:
            tries -= 1
            for each in (out, own):
                shutil.rmtree(each, ignore_errors=True)
            _new(out)
            kept = _new(own / "kept")
            found = [_new(own / f"found in {each}") for each in against]
            folders = {**({KEPT: str(kept)} if keeps else {}), FOUND: os.pathsep.join(map(str, found))}
            try:
                printed = _run(folder, words, {**given, **folders}, self._meanwhile([kept, *found]))
            except _AbortError:
                if not tries:
                    raise
            else:
                break
        out.rename(own / "out")
        renamed = name_alike(self.work / _FIRST / "out", own / "out") if name != _FIRST else {}
        # The two are given it in forms of their own, such as one below the folder of the one alone.
        given_one = {} if checkpoint is None else {checkpoint: "CKPT"}
        return Run(folder, printed, own / "out", {str(out): "OUT", **given_one, **renamed})

    def _meanwhile(self, folders: Sequence[Path]) -> Callable[[], None]:
        """Return what says how long a run takes, and how many steps of it are seen, when it is called."""
        begun = time.monotonic()

        def say() -> None:
            seen = max(len(list(each.glob("step-*"))) for each in folders)
            self.say(f"  {time.monotonic() - begun:.0f} s, {counted(seen, 'step')} seen")

        return say

    def documents(self, name: str, against: str = _FIRST) -> list[dict[str, Any]]:
        """Return what was found in the steps of a run, compared with another one."""
        paths = (self.work / name / f"found in {against}").glob("step-*.json")
        ordered = sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))
        return [json.loads(path.read_text()) for path in ordered]

    def num_steps(self, name: str) -> int:
        """Return how many steps a run has kept."""
        return len(list((self.work / name / "kept").glob("step-*.pt")))


def compare_scripts(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    command: Sequence[str],
    *,
    steps: int = 20,
    checkpoints: tuple[str, str] | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> ScriptReport:
    """Run a command in two folders, and compare what the two trained, printed and left.

    ``before`` holds the script under FSDP1, ``after`` the same script rewritten. Both run on this machine,
    one after the other, with the Python environment that this has. Whenever an optimizer of torch steps, the
    gradients, its groups, and then the parameters and buffers are gathered on all ranks, and compared by
    their names. So the script needs no change; but every seed in it must be set.

    Where the two part, the first one runs again, and the report says if it differs from itself. If it does
    not, and they part by more than rounding, it runs a last time. Where no number parts but where its
    gradient is rounding, its gradients are rounded otherwise, and the report says whether that makes as much
    of a difference. Else FSDP1 shards nothing (``NO_SHARD``), and the report says which of the two trains as
    that does.

    Changes: only what the script itself does in the two folders. Where ``OUT`` stands in the command, each
    run has a new folder there, which is compared and deleted.

    Args:
        before: The folder of the script under FSDP1, such as a copy from before ``rewrite --write``.
        after: The folder of the script under FSDP2.
        command: The words of the command, such as ``torchrun --nproc-per-node 2 train.py``.
        steps: How many steps of each model are compared; each is kept on the disk for both runs, as large as
            gradients, parameters and buffers.
        checkpoints: What stands for ``CKPT`` in the command: the checkpoint that FSDP1 saved, and the one
            that the script under FSDP2 goes on from, which may be the same.
        on_phase: Is told, in a few words, what begins.

    Raises:
        ConfigError: A folder or checkpoint is not there, the command is empty, or it has no ``CKPT`` for the
            checkpoints.
        RankError: One of the two runs failed. The error has the last lines that it printed.

    Example:
        >>> report = compare_scripts(".", ".", ["python", "-c", "print('no optimizer')"])
        >>> report.steps_before, report.identical
        (0, False)
    """
    folders = [_folder(each) for each in (before, after)]
    starts = _starts(command, checkpoints)
    say = on_phase or (lambda words: None)
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-compare-") as temporary:
        runs = Comparison(tuple(command), steps, Path(temporary), say)
        say(f"the script under FSDP1 runs in {folders[0]}")
        first = runs.run(folders[0], _FIRST, keeps=True, checkpoint=starts[0])
        say(f"the script under FSDP2 runs in {folders[1]}")
        second = runs.run(folders[1], _SECOND, keeps=True, against=[_FIRST], checkpoint=starts[1])
        report = report_of(first, second, runs)
        if report.first is None or report.were_fsdp1[1]:
            return report
        say("the two part: the script under FSDP1 runs again, and is compared with itself")
        try:
            runs.run(folders[0], _AGAIN, against=[_FIRST], checkpoint=starts[0])
        except RankError as error:
            return replace(report, notes=(*report.notes, f"{_NOT_AGAIN} {error}"))
        again = _differences(runs.documents(_AGAIN))
        # Where no two runs differ by more than rounding, they are alike.
        if again and not (report.alike and all(is_rounding(each.gap) for each in again)):
            return replace(report, differs_from_itself=True)
        if not report.num_unexplained or report.stateless:
            return report
        # Of rounding, shards say nothing: without them the norm to clip by is summed in another order too.
        if report.is_enlarged:
            say("once more under FSDP1, with gradients rounded otherwise: does it part as much from itself?")
            return _with_rounding(report, runs, folders[0], starts[0])
        say("once more under FSDP1, with whole parameters (NO_SHARD): which of the two is like it?")
        both = [_FIRST, _SECOND]
        with suppress(RankError):  # what it did until then tells as much
            runs.run(folders[0], _UNSHARDED, against=both, asks=_WHOLE, checkpoint=starts[0])
        near = [_is_near(report.first.step, runs.documents(_UNSHARDED, each)) for each in both]
        return replace(report, unsharded=_UNSHARDEDS.get((near[0], near[1]), "unknown"))


def _with_rounding(
    report: ScriptReport, runs: Comparison, folder: Path, checkpoint: str | None
) -> ScriptReport:
    """Run the script under FSDP1 with gradients rounded otherwise, and say if it shows what differs."""
    try:
        runs.run(folder, _ROUNDED, against=[_FIRST], asks=ROUNDED, checkpoint=checkpoint)
    except RankError as error:
        return replace(report, notes=(*report.notes, f"{_NOT_ROUNDED} {error}"))
    found, own = (_differences(runs.documents(name)) for name in (_SECOND, _ROUNDED))
    if unshown := not_shown(found, own):
        first = unshown[0]
        note = f"{_OWN} {place(first)}, step {first.step}."
        return replace(report, shown_by_rounding=False, notes=(*report.notes, note))
    outs = [runs.work / name / "out" for name in (_FIRST, _SECOND, _ROUNDED)]
    saved = [
        replace(each, is_enlarged=each.is_same is False and differ_as_own(each, outs[0], outs[1], outs[2]))
        for each in report.checkpoints
    ]
    return replace(
        report, shown_by_rounding=True, num_enlarged=report.num_unexplained, checkpoints=tuple(saved)
    )


def _differences(documents: Iterable[dict[str, Any]]) -> list[Difference]:
    return [read_difference(each) for document in documents for each in document["differences"]]


def _starts(
    command: Sequence[str], checkpoints: tuple[str, str] | None
) -> tuple[str, str] | tuple[None, None]:
    """Return the checkpoints that the two runs go on from, as paths that hold in every folder."""
    if not command:
        raise ConfigError(
            "There is no command to run. Give it after `--`, such as `-- python train.py`.",
            field="command",
        )
    if checkpoints is None:
        return None, None
    if not any(map(_CKPT.search, command)):
        raise ConfigError(
            "The command has no `CKPT`. Write `CKPT` where the script is given the checkpoint to go on from. "
            f"Where it finds one by itself, copy it there first: `{copied_first(checkpoints[0])}`.",
            field="command",
        )
    for each in checkpoints:
        if not Path(each).exists():
            raise ConfigError(
                f"There is no checkpoint {each}. Give the one that FSDP1 saved, and the one for FSDP2.",
                field="checkpoints",
            )
    return str(Path(checkpoints[0]).resolve()), str(Path(checkpoints[1]).resolve())


def _is_near(step: int, documents: Sequence[dict[str, Any]]) -> bool | None:
    """Tell whether two runs are the same but for rounding up to a step; None where one did not come to it."""
    seen = [each for each in documents[: max(1, step)] if each["is_in_both"]]
    if len(seen) < max(1, step):
        return None
    return all(is_rounding(each.gap) for each in _differences(seen) if each.step <= step)


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise ConfigError(f"{path} is no folder. Give the folder in which the command runs.", field="folder")
    return folder


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _run(
    folder: Path, words: Sequence[str], given: Mapping[str, str], meanwhile: Callable[[], None]
) -> tuple[str, ...]:
    """Run a command, watched, and return the lines that it printed."""
    of_runs_before = {KEPT, WITH, FOUND, ROUNDED, _WHOLE}
    above = os.environ.get("PYTHONPATH")
    given = {**{key: each for key, each in os.environ.items() if key not in of_runs_before}, **given}
    given["PYTHONPATH"] = os.pathsep.join([str(_AT_START), *([above] if above else [])])
    # `python` and `torchrun` of the environment in which this command is installed, activated or not.
    given["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which(words[0], path=given["PATH"])
    if program is None:
        raise ConfigError(f"`{words[0]}` is no program that can be found in PATH.", field="command")
    with subprocess.Popen(
        [program, *words[1:]],
        cwd=folder,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        lines = tuple(_printed(process, meanwhile).splitlines())
    if process.returncode:
        said = "\n".join(_what_failed(lines))
        tracebacks = sum(_TRACEBACK.match(line) is not None for line in lines)
        of_launchers = sum(_LOST in line for line in lines)
        is_aborted = any(_ABORTS in line for line in lines) and tracebacks <= of_launchers
        raise (_AbortError if is_aborted else RankError)(
            f"`{' '.join(words)}` failed in {folder} (exit code {process.returncode}). It printed:\n{said}"
        )
    return lines


def _printed(process: subprocess.Popen[str], meanwhile: Callable[[], None]) -> str:
    """Wait for a process, and return what it printed; call ``meanwhile`` now and then."""
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=SECONDS_BETWEEN)[0]
            meanwhile()
    except BaseException:
        process.kill()
        raise


def _what_failed(lines: Sequence[str]) -> Iterator[str]:
    """Yield the end of the first traceback: what follows is that of the launcher, which lost the process.

    Where one error is the cause of another, both are of it: the frames of the script may be the second's.
    """
    begins = next((place for place, line in enumerate(lines) if _TRACEBACK.match(line)), None)
    if begins is None:
        yield from lines[-_LAST_LINES:]
        return
    rank = _RANK.match(lines[begins])
    prefix = rank[0] if rank else ""
    own = [line.removeprefix(prefix) for line in lines[begins:] if line.startswith(prefix.rstrip())]
    goes_on = True
    while goes_on:
        ends = next((at for at, line in enumerate(own[1:], 1) if line and not line[0].isspace()), len(own))
        message = own[ends : ends + _LAST_LINES]
        stops = next((place for place, line in enumerate(message) if _LAUNCHERS.match(line)), len(message))
        yield from _shortened(own[:ends])
        yield from message[:stops]
        own = own[ends + stops :]
        goes_on = bool(own) and any(map(_CHAINED.search, message[:stops]))


def _shortened(traceback: Sequence[str]) -> Iterator[str]:
    """Yield the end of a traceback, and of what is before the frames in files of the project's own."""
    starts = [place for place, line in enumerate(traceback) if _FRAME.match(line)]
    frames = [traceback[one:other] for one, other in zip(starts, [*starts[1:], len(traceback)], strict=False)]
    last = next((at for at in range(len(frames)) if sum(map(len, frames[at:])) <= _LAST_LINES), len(frames))
    shown = {at for at, frame in enumerate(frames) if at >= last or _is_own(frame[0])}
    shown = set(sorted(shown)[-_MOST_FRAMES:])
    yield from traceback[: starts[0] if starts else None]
    for at, frame in enumerate(frames):
        if at in shown:
            yield from frame
        elif at == 0 or at - 1 in shown:
            yield "  ..."


def _is_own(line: str) -> bool:
    """Tell whether a frame is in a file that is neither installed, nor Python's, nor of this package."""
    return _INSTALLED.search(line) is None and str(_AT_START.parents[1]) not in line


def report_of(first: Run, second: Run, runs: Comparison) -> ScriptReport:
    """Put together what was found in the two runs."""
    documents = runs.documents(_SECOND)
    differences = sorted(_differences(documents), key=lambda each: is_rounding(each.gap))
    first_step = differences[0].step if differences else 0
    under = [each["are_fsdp1"] for each in documents]
    were_fsdp1 = any(one for one, _ in under), any(other for _, other in under)
    pairs, (before, after) = printed_lines(first, second)
    after, told = told_apart(after)
    files = [_files(each.out) for each in (first, second)]
    saved = list(compare_left(first.out, second.out))
    inside = {part for each in saved for part in _parts(each, files[0] | files[1])}
    others = [
        each
        for each in sorted((files[0] & files[1]) - inside)
        if not filecmp.cmp(first.out / each, second.out / each, shallow=False)
    ]
    records = {each: found for each in others if (found := _records(each, first, second)) is not None}
    unread = [each for each in others if each not in records]
    return ScriptReport(
        before=str(first.folder),
        after=str(second.folder),
        command=runs.command,
        steps_before=runs.num_steps(_FIRST),
        steps_after=len(documents),
        compared=sum(document["compared"] for document in documents if document["is_in_both"]),
        differences=tuple(differences[:_MOST_DIFFERENCES]),
        num_differences=len(differences),
        num_rounded=sum(is_rounding(each.gap) for each in differences),
        num_printed=len(pairs) + len(before) + len(after),
        num_pairs=len(pairs),
        printed=most_pairs(pairs),
        printed_before=tuple(before)[:MOST_LINES],
        printed_after=tuple(after)[:MOST_LINES],
        told=told,
        only_before=tuple(sorted(files[0] - files[1] - inside))[:_MOST_FILES],
        only_after=tuple(sorted(files[1] - files[0] - inside))[:_MOST_FILES],
        checkpoints=tuple(saved),
        records=tuple(records.values()),
        were_fsdp1=were_fsdp1,
        is_enlarged=any(each["is_enlarged"] for each in documents if each["number"] == first_step),
        follows_rounding=any(each.step < first_step for each in differences),
        is_others=any(each["is_others"] for each in documents),
        stateless=_stateless(documents, differences[0]) if differences else "",
        notes=tuple(_notes(runs.command, were_fsdp1[0], bool(documents), unread)),
    )


def _stateless(documents: Sequence[dict[str, Any]], first: Difference) -> Stateless:
    """Tell whose optimizer has no state in a step that makes other parameters of the same gradients."""
    if first.stage != "parameter" or is_rounding(first.gap):
        return ""
    have = next((each["have_state"] for each in documents if each["number"] == first.step), [True, True])
    if have[0] == have[1]:
        return ""
    return "FSDP2" if have[0] else "FSDP1"


def _notes(command: Sequence[str], was_fsdp1: bool, is_seen: bool, unread: Sequence[str]) -> Iterator[str]:
    if is_seen and not was_fsdp1:
        yield _NO_FSDP1
    if not any(map(OUT.search, command)):
        yield _NO_FILES
    if unread:
        yield f"{_UNREAD}: {listed(unread, _MOST_UNREAD)}."


def _records(name: str, first: Run, second: Run) -> Records | None:
    """Compare a file that both wrote record by record, or return None where it holds none."""
    paths = [each.out / name for each in (first, second)]
    if not name.endswith(SUFFIXES) or any(path.stat().st_size > _MOST_BYTES for path in paths):
        return None
    texts = (
        "\n".join(shown_line(line, run) for line in path.read_text(errors="replace").split("\n"))
        for path, run in zip(paths, (first, second), strict=True)
    )
    return compare_records(name, *texts)


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _parts(saved: Checkpoints, files: Iterable[str]) -> Iterator[str]:
    """Yield the files of a checkpoint: all in its folder, and of the output itself what was compared."""
    for each in files:
        if each in saved.files or each == saved.path or each.startswith(f"{saved.path}/"):
            yield each
