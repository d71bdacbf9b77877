"""The end of the work: the two runs compared, the checkpoints converted, the new run started."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.findings import listed
from fsdp_migrate.source.checkpoint_readers import said_of_readers
from fsdp_migrate.source.checkpoint_runs import copied_first
from fsdp_migrate.source.next_step import Step
from fsdp_migrate.source.publishing import TRAINERS, is_trainers, steps_to_publish
from fsdp_migrate.source.saved_files import SAVED


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.surroundings import CheckpointFound


# torch writes what names the tensors of a file before them.
_OPTIMIZER, _HEAD = b"optim", 4 << 20
_MOST_OTHERS, _MOST_SCRIPTS = 3, 6
_INSPECT = (
    "See whether FSDP2 loads, as it is, the checkpoint that the next run starts from, and the line of Python "
    "that loads it; and what FSDP1 itself does wrong when it goes on from it."
)
_OTHERS = "If another run has still to go on under FSDP2:"
_CONVERT = "Only where `inspect` says `needs it converted`: convert it, and compare the two."
_CONVERT_SURELY = "Convert it, as what reads it under FSDP2 needs it, and compare the two."
_NOT_NEEDED = "No conversion is needed of {}: {} loads it as it is."
_COMES_BACK = " All that was saved by a name with `None` comes back in `.values` of what that returns."
_AS_INSPECT_WRITES = "load_checkpoint of fsdp_migrate, as `inspect` writes it,"
_CONVERT_LIGHTNINGS = "Convert it, as Lightning's Trainer needs it, and compare the two."
_FULL = (
    "A script that reads a full state with torch.load or load_file needs no conversion: rewritten, it does "
    "so as before."
)
_CLIPS = "If it clips gradients{}, compare losses and not bits: their norm is summed in another order."
_BY_DEFAULT = ", as HF Trainer does by default"
_START = "Then start the run as before, from that checkpoint or from what it was converted to."
_START_AS_IT_IS = "Then start the run as before, from that checkpoint."
_EACH = "Do so with each script that trains: {}."
_ANEW = (
    "Lightning takes it as Trainer.fit(model, ckpt_path=...). Compare its losses with those of an FSDP1 run "
    "that is resumed from the same checkpoint: in the middle of an epoch Lightning starts the loader anew, "
    "under FSDP1 too."
)
_WITHOUT_MOMENTS = (
    "What FSDP1 itself resumes from such a checkpoint of Accelerate's has no moments (`doctor --checkpoint` "
    "says accelerate-resumes-without-moments), so that `compare` finds a difference in its second step: the "
    "losses of the new run are to be those of the FSDP1 run that was not stopped."
)
_LIGHTNINGS = (
    "Lightning's Trainer goes on from a `.ckpt` file as it is, with ModelParallelStrategy and "
    "Trainer.fit(model, ckpt_path=FILE)."
)
_FLAT = (
    "Files of ranks with flat parameters (LOCAL_STATE_DICT, FM238) need `--model PKG.MOD:FACTORY --config "
    "FILE` here: the model, and FSDP1's arguments of the run that saved them. `inspect` says so."
)
_KEEP = (
    "Keep a copy of the project as it is now, without its checkpoints where they are large: `compare` runs "
    "it, and then the new one."
)
_IS_THERE = (
    "{} is there already. If it is no copy of this project as it is now, keep one by another name, and write "
    "that into the commands below."
)
_COMPARE = (
    "Compare a short run of your own command before and after, one that evaluates and saves too: what "
    "trains, prints or saves otherwise without an error is named. Write `OUT` where COMMAND says where to "
    "save (`--out OUT`): each run gets a new folder there, and nothing is overwritten."
)
_FROM_BEFORE = "{} is taken for the project as it was before it was rewritten: see that it is that."
_NO_COPY = (
    "{0} is to be the project as it was before it was rewritten, and is not there: make it of the commit "
    "before, as by `git worktree add {0} COMMIT`, or of a copy."
)
_GO_ON = (
    "To see before that it goes on alike, give `compare` both{}, and write `CKPT` into COMMAND where the "
    "script is given its checkpoint. A script that finds the newest by itself gets a copy first, where it "
    "looks: `{}`."
)
_OR_ANOTHER = " If no script goes on from {}, take one that a script goes on from ({})."
_ENDED = (
    " If the run ended with that checkpoint, nothing is left to train from it: take one before it ({}){}, or "
    "let COMMAND train further."
)
_ABOVE_TOO = ", in the commands above too"
_SAME = (
    ": the same one twice where `inspect` says `Nothing needs to be converted`, else what it was converted to"
)


def folder_of(paths: Sequence[str]) -> str:
    """Return the folder in which the project's command runs, as far as the paths tell.

    Example:
        >>> folder_of(["project"]), folder_of(["train.py"])
        ('project', '.')
    """
    return paths[0] if len(paths) == 1 and not paths[0].endswith((".py", ".ipynb")) else "."


def _copy_of(folder: str) -> str:
    """Return where a copy of a folder lies: beside it."""
    return "../before" if Path(folder) == Path() else f"{folder.rstrip('/')}-fsdp1"


def step_to_keep(folder: str) -> Step:
    """Return the step that keeps the project as it is, for :func:`step_to_compare`.

    Example:
        >>> step_to_keep(".").commands
        ('cp -r . ../before',)
    """
    copy = _copy_of(folder)
    # Into a folder that is there, `cp -r` would lay the project beside what is in it.
    if Path(copy).exists():
        return Step(f"{_KEEP} {_IS_THERE.format(copy)}", ())
    return Step(_KEEP, (f"cp -r {shlex.quote(folder)} {shlex.quote(copy)}",))


def step_to_compare(folder: str, scripts: Sequence[str] = (), *, is_kept: bool) -> Step:
    """Return the step that compares the two runs, of each of several scripts.

    Args:
        folder: The folder of the project.
        scripts: The scripts that train, as far as it is seen.
        is_kept: Whether a step before has kept the old project.
    """
    before = _copy_of(folder)
    said = _FROM_BEFORE if Path(before).is_dir() else _NO_COPY
    text = _COMPARE if is_kept else f"{_COMPARE} {said.format(before)}"
    text += f" {_EACH.format(listed(scripts, _MOST_SCRIPTS))}" if len(scripts) > 1 else ""
    return Step(text, (_compare(folder),))


def _compare(folder: str, *options: str) -> str:
    given = map(shlex.quote, (_copy_of(folder), folder, *options))
    return f"fsdp-migrate compare {' '.join(given)} -- COMMAND"


def steps_for_checkpoints(
    checkpoints: Sequence[CheckpointFound], models: Sequence[str], folder: str | None
) -> list[Step]:
    """Return what to do with the latest of each run that FSDP1 saved: look, convert, start.

    ``folder`` is that of the project, None where checkpoints alone were found.
    """
    latest = sorted((each for each in checkpoints if each.is_latest), key=lambda each: -each.saved)
    # What cannot be read is listed with the reason, and no command can be followed with it.
    waiting = [e for e in latest if not (e.is_converted or e.is_fsdp2s or e.is_incomplete or e.is_export)]
    goes_on = any(each.is_fsdp2s for each in latest)
    steps = []
    one = max(waiting, key=_may_be_whole, default=None)
    if one is not None:
        inspect = tuple(f"fsdp-migrate inspect {shlex.quote(each.path)}" for each in waiting)
        inspect += (f"fsdp-migrate doctor --checkpoint {shlex.quote(one.path)}",)
        steps.append(Step(f"{_OTHERS} {_INSPECT[0].lower()}{_INSPECT[1:]}" if goes_on else _INSPECT, inspect))
        steps.append(_step_to_convert(waiting))
    if one is not None and folder is not None and not goes_on:
        anew = any(each.is_lightnings for each in waiting)
        # Of a full state nothing is converted. Whether another is, `inspect` says where its head does not.
        loads = [one.path] if one.is_full or _is_ready(one) else [one.path, one.target]
        loads = [one.target] if _is_surely_converted(one) else loads
        both = tuple(_compare(folder, "--checkpoint", one.path, each) for each in loads)
        go_on = _GO_ON.format(_SAME if len(loads) > 1 else "", copied_first(one.path))
        go_on += _ended(one, loads) + _or_another(one, waiting)
        start = _START_AS_IT_IS if loads == [one.path] and all(map(_is_ready, waiting)) else _START
        clips = _CLIPS.format(_BY_DEFAULT if any(map(is_trainers, waiting)) else "")
        without = _WITHOUT_MOMENTS if _is_resumed_without_moments(one) else ""
        said = (start, clips, _ANEW if anew else "", without, go_on)
        steps.append(Step(" ".join(filter(None, said)), both))
    if folder is not None:
        # Of the new run's, too: what it trains is to be published as well.
        newer = [each for each in latest if each.is_fsdp2s and not (each.is_incomplete or each.is_export)]
        steps += steps_to_publish(newer or waiting, models)
    return steps


def _step_to_convert(waiting: Sequence[CheckpointFound]) -> Step:
    """Return what converts the checkpoints that need it, or may, and say who loads the others."""
    unknown = [each for each in waiting if not _is_ready(each)]
    said = [
        *_said_of_ready(waiting),
        *([_FULL] if any(each.is_full and not each.is_lightnings for each in unknown) else []),
        *([_LIGHTNINGS] if any(each.is_full and each.is_lightnings for each in unknown) else []),
        *([_FLAT] if any(each.is_of_ranks for each in unknown) else []),
        *said_of_readers(unknown),
    ]
    # What a script reads as it is needs no conversion, and would not be found where that lies.
    turned = [each for each in unknown if not (each.is_full and each.read_by and not each.is_lightnings)]
    pairs = [(shlex.quote(each.path), shlex.quote(each.target)) for each in turned]
    are_sure = all(map(_is_surely_converted, turned))
    lightnings = all(map(_is_lightnings_folder, turned))
    convert = _CONVERT_LIGHTNINGS if lightnings else _CONVERT_SURELY if are_sure else _CONVERT
    commands = (
        f"fsdp-migrate {word} {source} {out}" for source, out in pairs for word in ("convert", "verify")
    )
    return Step(" ".join([*([convert] if pairs else []), *said]), tuple(commands))


def _said_of_ready(waiting: Sequence[CheckpointFound]) -> Iterator[str]:
    """Say of checkpoints that need no conversion who loads them, those of one reader together."""
    of_readers: dict[str, list[CheckpointFound]] = {}
    for each in waiting:
        if each.outlook is not None and _is_ready(each):
            if each.outlook.lacks:
                yield f"{each.path}: {each.outlook.lacks}"
                continue
            of_readers.setdefault(each.outlook.reader, []).append(each)
    for reader, found in of_readers.items():
        calls = [each.outlook.call for each in found if each.outlook is not None and each.outlook.call]
        own = f"fsdp_migrate's `{calls[0]}`" if calls else ""
        own = _AS_INSPECT_WRITES if len(calls) > 1 else own
        who = " or ".join(filter(None, (reader, own)))
        more = _COMES_BACK if any(": None" in call for call in calls) else ""
        yield _NOT_NEEDED.format(listed([each.path for each in found], _MOST_OTHERS), who) + more


def _is_ready(checkpoint: CheckpointFound) -> bool:
    """Tell whether its head says that it needs no conversion."""
    return checkpoint.outlook is not None and not checkpoint.outlook.is_needed


def _is_surely_converted(checkpoint: CheckpointFound) -> bool:
    is_needed = checkpoint.outlook is not None and checkpoint.outlook.is_needed
    return is_needed or _is_lightnings_folder(checkpoint)


def _is_lightnings_folder(checkpoint: CheckpointFound) -> bool:
    """Tell whether ``inspect`` is sure to ask for a conversion: Lightning's Trainer reads other names now."""
    return checkpoint.is_lightnings and not checkpoint.is_full


def _is_resumed_without_moments(checkpoint: CheckpointFound) -> bool:
    """Tell whether Accelerate saved the optimizer in shards, which its FSDP1 does not load again."""
    parts = (Path(checkpoint.path, name, METADATA_FILE) for name in ("optimizer_0", "pytorch_model_fsdp_0"))
    return all(each.is_file() for each in parts)


def _ended(one: CheckpointFound, loads: Sequence[str]) -> str:
    """Say what to take where the run has nothing left to do: whether it has is not seen of a checkpoint."""
    return _ENDED.format(one.before, "" if loads == [one.path] else _ABOVE_TOO) if one.before else ""


def _or_another(one: CheckpointFound, waiting: Sequence[CheckpointFound]) -> str:
    """Say what to take where no script resumes the one: which do is not seen of the sources."""
    others = [each.path for each in waiting if each is not one]
    return _OR_ANOTHER.format(one.path, listed(others, _MOST_OTHERS)) if others else ""


def _may_be_whole(checkpoint: CheckpointFound) -> tuple[bool, bool, bool]:
    """Rank what a run may go on from: an optimizer in it, what sources name, a usual name.

    Sources name other models too, such as a teacher, and a run that goes on by itself (``epoch_1``) names
    nothing. A file by a name of its own, such as ``epoch_2.opt``, is rather a part that lies beside a model.
    """
    path = checkpoint.path
    is_usual = not Path(path).suffix or path.endswith((*SAVED, ".safetensors")) or not checkpoint.is_full
    return is_usual and _holds_optimizer(Path(path)), bool(checkpoint.read_by), is_usual


def _holds_optimizer(path: Path) -> bool:
    """Tell whether a checkpoint names an optimizer, as what a run goes on from does; it is not read as one.

    An optimizer alone in a file does not: its keys are ``state`` and ``param_groups``.
    """
    try:
        if path.is_file():
            with path.open("rb") as file:
                return _OPTIMIZER in file.read(_HEAD)
        below = [path, *(each for each in path.iterdir() if each.is_dir())]
        names = {inner.name for inner in path.iterdir()}
        return (
            any(name.startswith(_OPTIMIZER.decode()) for name in names)
            or TRAINERS in names
            or any((each / METADATA_FILE).is_file() and _OPTIMIZER in _metadata(each) for each in below)
        )
    except OSError:
        return False


def _metadata(folder: Path) -> bytes:
    return (folder / METADATA_FILE).read_bytes()
