"""The checkpoints that both runs of a script left: what differs in them, and whether FSDP1's are right."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert import inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.sources.equal_moments import moments_of
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.parity.enlarging import AS_MUCH
from fsdp_migrate.parity.script_report import Checkpoints
from fsdp_migrate.source.surroundings import find_checkpoints


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.checkpoint_convert import Manifest, VerifyReport
    from fsdp_migrate.checkpoint_convert.verification.verify import Difference
    from fsdp_migrate.findings import Finding


_CORRUPT = "FM217"
_ROUNDED = 1e-4
_FLAT_NAME = re.compile(r"(?:^|\.)_?flat_param$")
_COUNTED = re.compile(r"(?:^|\.)param_groups\.\d+\.params$")  # how many an optimizer has
_FLAT = (
    "is one rank's part of a flat parameter, which FSDP1's run alone saved: FSDP2's has a tensor of each "
    "parameter there, as it is to have (FM307). To compare both, convert FSDP1's first (FM238)."
)
_BY_RANKS = "FM239"
_RANKS = (
    "is one rank's part of flat parameters in each of FSDP1's files, and whole in FSDP2's, as it is to be "
    "(FM425). What the run goes on with, its steps show."
)
# All of them: the largest may be the last.
_MOST_DIFFERENCES = 100_000


def compare_left(before: Path, after: Path) -> Iterator[Checkpoints]:
    """Compare the checkpoints that lie at the same place in the output of both runs.

    Args:
        before: What the run under FSDP1 left.
        after: What the one under FSDP2 left.

    Example:
        >>> from pathlib import Path
        >>> folder = Path("tests/checkpoint/data/torch-2.13.0/plain.dcp")
        >>> [(each.path, each.is_same) for each in compare_left(folder, folder)]
        [('.', True)]
    """
    names = [
        [Path(each.path).relative_to(out).as_posix() for each in find_checkpoints([out])]
        for out in (before, after)
    ]
    for name in names[0]:
        if name not in names[1]:
            continue
        try:
            manifests = inspect_checkpoint(before / name), inspect_checkpoint(after / name)
            report = verify_checkpoints(*manifests, max_differences=_MOST_DIFFERENCES)
        except FSDPMigrateError as error:
            yield Checkpoints(path=name, is_same=None, words=str(error).partition("\n")[0])
            continue
        held = tuple(manifests[0].files) if name == "." else ()
        yield replace(_compared(name, report, manifests), files=held)


def differ_as_own(saved: Checkpoints, before: Path, after: Path, rounded: Path) -> bool:
    """Tell whether a checkpoint differs by no more than in FSDP1's own run, with gradients rounded otherwise.

    Args:
        saved: The checkpoint that both runs left, and that differs.
        before: What the run under FSDP1 left.
        after: What the one under FSDP2 left.
        rounded: What the run under FSDP1 left whose gradients were rounded otherwise.
    """
    try:
        found, own = (
            verify_checkpoints(
                inspect_checkpoint(before / saved.path),
                inspect_checkpoint(other / saved.path),
                max_differences=_MOST_DIFFERENCES,
            ).differences
            for other in (after, rounded)
        )
    except FSDPMigrateError:
        return False
    most = {each.key: each.largest or 0.0 for each in own}
    return all(
        _are_rounded([each])
        or (each.kind == "value" and (each.largest or math.inf) <= AS_MUCH * most.get(each.key, 0.0))
        for each in found
    )


def _compared(name: str, report: VerifyReport, manifests: tuple[Manifest, Manifest]) -> Checkpoints:
    found = report.differences
    if (flat := _flat_alone(found)) is not None:
        return _of_flat(name, flat, found)
    if optimizers := _of_ranks_alone(manifests):
        return _of_ranks(name, optimizers, found)
    corrupt = None if report.is_same else _corrupt(manifests)
    if corrupt is None:
        return Checkpoints(
            path=name, is_same=report.is_same, words=_words(found), is_rounded=_are_rounded(found)
        )
    lost = _lost(manifests[0], corrupt.subject, found)
    others = [each for each in found if each.key not in lost]
    besides = f"Besides, it differs: {_words(others)}" if others else "Nothing else differs."
    return Checkpoints(
        path=name,
        is_same=False,
        words=f"FSDP1's own file is corrupt, {_CORRUPT} `{corrupt.subject}`: {corrupt.message} {besides}",
        is_fsdp1s=report.is_complete and (not others or _are_rounded(others)),
    )


def _of_flat(name: str, flat: str, differences: Sequence[Difference]) -> Checkpoints:
    """Say why a flat parameter is not compared, and what else differs, but for what went with it."""
    others = [
        each
        for each in differences
        if each.kind not in {"missing", "extra"} and _COUNTED.search(each.key) is None
    ]
    besides = f" Besides, it differs: {_words(others)}" if others else ""
    is_same = False if others and not _are_rounded(others) else None
    return Checkpoints(path=name, is_same=is_same, words=f"`{flat}` {_FLAT}{besides}")


def _flat_alone(differences: Sequence[Difference]) -> str | None:
    """Return a flat parameter that FSDP1's run alone saved; None where nothing stands in its place."""
    gone = [each.key for each in differences if each.kind == "missing" and _FLAT_NAME.search(each.key)]
    has_new = any(each.kind == "extra" for each in differences)
    return gone[0] if gone and has_new else None


def _of_ranks_alone(manifests: tuple[Manifest, Manifest]) -> list[str]:
    """Return the optimizers of which FSDP1's run alone saved each rank's part, by their names."""
    found = [[each for each in one.findings if each.code == _BY_RANKS] for one in manifests]
    parts = [part.name for part in manifests[1].parts if part.kind == "optimizer"]
    return parts if found[0] and not found[1] else []


def _of_ranks(name: str, optimizers: Sequence[str], differences: Sequence[Difference]) -> Checkpoints:
    """Say why such an optimizer is not compared, and what else differs."""
    inside = tuple(f"{each}." for each in optimizers)
    others = [each for each in differences if not each.key.startswith(inside)]
    besides = f" Besides, it differs: {_words(others)}" if others else ""
    is_same = False if others and not _are_rounded(others) else None
    return Checkpoints(path=name, is_same=is_same, words=f"`{optimizers[0]}` {_RANKS}{besides}")


def _corrupt(manifests: tuple[Manifest, Manifest]) -> Finding | None:
    """Return what says that FSDP1's optimizer is corrupt, where FSDP2's is not."""
    found = [[each for each in one.findings if each.code == _CORRUPT] for one in manifests]
    return found[0][0] if found[0] and not found[1] else None


def _lost(manifest: Manifest, optimizer: str, differences: Sequence[Difference]) -> set[str]:
    """Return the keys of moments that FSDP1 wrote the other one over: of two, what differs by more."""
    parts = {each.key: _part_that_differs(each) for each in differences}
    return {
        max((first.key, second.key), key=lambda key: parts.get(key, 0.0))
        for part in manifest.parts
        if part.name == optimizer
        for first, second in moments_of(manifest.entries, part)
    }


def _words(differences: Sequence[Difference]) -> str:
    """Name what differs by the largest part of its numbers, by the largest number, and first."""
    if not differences:
        return ""
    most = max(differences, key=_part_that_differs)
    words = f"{most.key}: {most.message}"
    by_number = max(differences, key=lambda each: each.largest or 0.0)
    if by_number.key != most.key and by_number.largest:
        words += f". By the largest number: {by_number.key}, by {by_number.largest:.3g}"
    if differences[0].key not in {most.key, by_number.key}:
        words += f". The first of {len(differences):,}: {differences[0].key}"
    return words


def _are_rounded(differences: Sequence[Difference]) -> bool:
    return bool(differences) and all(_part_that_differs(each) < _ROUNDED for each in differences)


def _part_that_differs(difference: Difference) -> float:
    """Return by what part of its numbers a tensor differs; of what is no number, all."""
    if difference.kind != "value" or difference.largest is None or not difference.scale:
        return math.inf
    return difference.largest / difference.scale
