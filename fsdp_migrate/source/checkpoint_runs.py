"""Which checkpoints are of one run, which is the latest, and where its conversion, or a copy, belongs."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.sources.made_here import is_made_here


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.source.surroundings import CheckpointFound


_CONVERTED = "fsdp2"
_NUMBER = re.compile(r"\d+")
# Ranks of one save end within so many seconds.
_TOGETHER = 2.0
_STEPS = re.compile(
    r"step|epoch|iter|check|ckpt|(?:^|[_\-.])(?:ep|ba|e|s|it)[_\-.]?\*|^[_\-.]?\*", re.IGNORECASE
)
# Accelerate looks there in its `project_dir`, if it names checkpoints itself.
_ACCELERATES = re.compile(r"checkpoints/checkpoint_\d+")
_KEPT_IN = re.compile(r"checkpoints?|ckpts?", re.IGNORECASE)
_COUNTED = re.compile(r"(?:^|.*[-_=.])\d+")


def placed(found: Sequence[CheckpointFound], roots: Iterable[str | Path] = ()) -> list[CheckpointFound]:
    """Return checkpoints with sizes, targets and runs; what is the conversion of another is left out.

    Args:
        found: The checkpoints.
        roots: What was looked through. The names of folders below tell where conversions were put.
    """
    tops = [Path(root) for root in roots]
    taken: set[str] = set()
    found = _joined(found)
    targets = [target_of(each.path, taken) for each in found]
    outputs = {str(Path(target)) for target in targets}
    kept = [
        replace(
            each,
            **_measured(each.path, each.beside),
            target=target,
            is_converted=Path(target).exists(),
            is_fsdp2s=_is_where_conversions_are(each.path, tops) or is_made_here(Path(each.path)),
        )
        for each, target in zip(found, targets, strict=True)
        if str(Path(each.path)) not in outputs
    ]
    latest = _latest(kept)
    return [replace(each, is_latest=each.path in latest, before=latest.get(each.path, "")) for each in kept]


def target_of(path: str, taken: set[str]) -> str:
    """Return where the conversion of a checkpoint belongs: in a folder beside that of the run.

    A name beside the source, such as ``step-10-fsdp2``, would be the newest of the old run for whoever looks
    for ``step-*``. A file in such a folder takes the folder with it.

    Example:
        >>> target_of("runs/step-10", set()), target_of("step-10.pt", set())
        ('runs-fsdp2/step-10', 'fsdp2/step-10')
        >>> target_of("runs/step-10/state.pt", set())
        'runs-fsdp2/step-10/state'
    """
    source = Path(path)
    step = source.parent
    is_counted = not _NUMBER.search(source.stem) and _COUNTED.fullmatch(step.name)
    parent = step.parent if is_counted else step
    folder = (
        parent / _CONVERTED if parent.name in {"", ".."} else parent.with_name(f"{parent.name}-{_CONVERTED}")
    )
    folder = folder / step.name if is_counted else folder
    name = source.stem if source.suffix and not source.is_dir() else source.name
    target = str(folder / name)
    if target in taken:
        target = str(folder / source.name.replace(".", "-"))
    taken.add(target)
    return target


def copied_first(path: str) -> str:
    """Return what ``compare`` runs for a script that finds the newest checkpoint by itself, in its output.

    Example:
        >>> copied_first("runs/step-10.pt")
        "-- bash -c 'mkdir -p OUT && cp -r CKPT OUT && COMMAND --save-to OUT'"
        >>> copied_first("runs/ckpt/step-10")
        "-- bash -c 'mkdir -p OUT/ckpt && cp -r CKPT OUT/ckpt && COMMAND --save-to OUT'"
    """
    above = Path(path).parent
    is_below = _ACCELERATES.fullmatch("/".join(Path(path).parts[-2:])) is not None
    # The output of a run is above it, if there is something above it.
    is_below = is_below or (
        _KEPT_IN.fullmatch(above.name) is not None and above.parent.name not in {"", ".."}
    )
    out = f"OUT/{above.name}" if is_below else "OUT"
    return f"-- bash -c 'mkdir -p {out} && cp -r CKPT {out} && COMMAND --save-to OUT'"


def _is_where_conversions_are(path: str, roots: Iterable[Path]) -> bool:
    """Tell whether a folder above it, below what was looked through, has the name that a target has."""
    below = (Path(path).relative_to(root) for root in roots if Path(path).is_relative_to(root))
    names = {name for each in below for name in each.parent.parts}
    return any(name == _CONVERTED or name.endswith(f"-{_CONVERTED}") for name in names)


def _joined(found: Sequence[CheckpointFound]) -> list[CheckpointFound]:
    """Return checkpoints, the first of the files that the ranks saved of one state standing for all of them.

    Those that are counted from 0 on and were saved together. Where the name says that steps are counted, they
    are checkpoints of one run after another. A folder of files whose names say "rank" is one as a whole.
    """
    files: defaultdict[str, dict[str, CheckpointFound]] = defaultdict(dict)
    for each in found:
        if each.is_full and not each.is_lightnings and Path(each.path).is_file():
            files[str(Path(each.path).parent)][Path(each.path).name] = each
    stands: dict[str, tuple[str, ...]] = {}
    for own in files.values():
        for names in _families(own):
            paths = tuple(own[name].path for name in names)
            stands |= dict.fromkeys(paths, ()) | {paths[0]: paths[1:]}
    joined = []
    for each in found:
        beside = stands.get(each.path)
        if beside:
            shown = ", ".join(Path(path).name for path in (each.path, *beside))
            joined.append(replace(each, layout=f"a file of each rank, as it seems: {shown}", beside=beside))
        elif beside is None:
            joined.append(each)
    return joined


def _families(own: Mapping[str, CheckpointFound]) -> Iterator[list[str]]:
    """Yield the names of the files of a folder that ranks saved together, by what they are called."""
    from fsdp_migrate.checkpoint_convert.sources.rank_files import find_counted

    for family in find_counted(own):
        names = list(family.files.values())
        saved = [Path(own[name].path).stat().st_mtime for name in names]
        if max(saved) - min(saved) < _TOGETHER and not _STEPS.search(family.stem):
            yield names


def _measured(path: str, beside: Sequence[str] = ()) -> dict[str, Any]:
    """Return the bytes of a file, or of all files below a folder, and when the newest was written."""
    files = (
        [Path(each) for each in (path, *beside)]
        if Path(path).is_file()
        else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    )
    looked = [file.stat() for file in files if file.is_file()]
    return {
        "nbytes": sum(each.st_size for each in looked),
        "saved": max((each.st_mtime for each in looked), default=0.0),
    }


def saved_since(found: Sequence[CheckpointFound], turned: float | None) -> list[CheckpointFound]:
    """Return checkpoints, taken for FSDP2's where they were saved after FSDP1 was gone.

    An FSDP1 run that was under way saves later too. What FSDP2 does not save, files of ranks, stays FSDP1's.
    """
    if turned is None:
        return list(found)
    return [
        replace(each, is_fsdp2s=each.is_fsdp2s or (each.saved > turned and not each.is_of_ranks))
        for each in found
    ]


def _latest(found: Iterable[CheckpointFound]) -> dict[str, str]:
    """Return the newest of each run, and the one before: of names that differ in their numbers, by these.

    What a run that was stopped left incomplete is none that the next one can start from.
    """
    runs: defaultdict[tuple[str, str, bool], list[CheckpointFound]] = defaultdict(list)
    for each in found:
        path = Path(each.path)
        runs[str(path.parent), _NUMBER.sub("#", path.name), path.is_dir()].append(each)
    latest = {}
    for of_run in runs.values():
        *earlier, newest = sorted(of_run, key=_order)
        whole = [each.path for each in earlier if not each.is_incomplete]
        latest[newest.path] = whole[-1] if whole else ""
    return latest


def _order(found: CheckpointFound) -> tuple[bool, list[int]]:
    numbers = [int(number) for number in _NUMBER.findall(Path(found.path).name)]
    return not found.is_incomplete, numbers
