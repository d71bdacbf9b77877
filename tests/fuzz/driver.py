"""Draws many runs, has ranks train them, and shrinks what differs."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz import draws, runs
from tests.fuzz.units import KINDS
from tests.fuzz.verdicts import Verdict, judge
from tests.ranks import RanksFailedError, run_ranks


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.fuzz.draws import Draw


CHUNK = 60
"""Draws for which ranks are started once."""


def draw_many(number: int, seed: int, *, ranks: int = 2) -> list[Draw]:
    """Draw so many runs; the same ones for the same seed."""
    chance = random.Random(seed)  # nothing is kept secret
    return [draws.draw(chance, tuple(KINDS), ranks=ranks) for _ in range(number)]


def verdicts_of(
    drawn: Sequence[Draw], *, limit: float = runs.LIMIT_OF_A_DRAW, device: str = "cpu"
) -> Iterator[Verdict]:
    """Train each draw under both, and yield what came of it, in order where all need as many ranks."""
    for ranks in sorted({each.ranks for each in drawn}):
        waiting = [each for each in drawn if each.ranks == ranks]
        while waiting:
            done = list(_train(waiting[:CHUNK], ranks, limit, device))
            yield from done
            waiting = waiting[len(done) :]


def _train(drawn: Sequence[Draw], ranks: int, limit: float, device: str) -> Iterator[Verdict]:
    """Train draws in one process for each rank, as far as they come: a hang ends it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        failure = None
        try:
            run_ranks(
                runs.run_all,
                [str(each) for each in drawn],
                folder,
                limit,
                device,
                world_size=ranks,
                timeout=limit * (len(drawn) + 2),
                backend="gloo" if device == "cpu" else "shared_gpu",
            )
        except RanksFailedError as error:
            failure = error
        said = [_said(Path(folder) / f"rank-{rank}") for rank in range(ranks)]
    yield from what_came_of(drawn, said, failure)


def what_came_of(
    drawn: Sequence[Draw], said: list[list[object]], failure: RanksFailedError | None
) -> Iterator[Verdict]:
    """Yield the verdicts of the draws that all ranks reported, and of the one that ended them."""
    reports = [[runs.Report(**each) for each in lines if isinstance(each, dict)] for lines in said]
    complete = min(map(len, reports))
    for index in range(complete):
        yield judge(drawn[index], [each[index] for each in reports])
    if failure is not None and not any(said):
        raise failure  # no rank came as far as the first draw
    if failure is not None and complete < len(drawn):
        last = {lines[-1] for lines in said if lines and isinstance(lines[-1], str)}
        if last == {"fsdp1"}:
            yield Verdict(drawn[complete], "FSDP1 fails", "it hangs, or dies")
        else:
            yield Verdict(drawn[complete], "hangs", str(failure))


def _said(file: Path) -> list[object]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def shrink(verdict: Verdict, *, limit: float = runs.LIMIT_OF_A_DRAW, device: str = "cpu") -> Verdict:
    """Return the simplest draw that comes out as this one did; each turn tries all a step simpler."""
    while True:
        simpler = list(dict.fromkeys(map(draws.settle, draws.simpler(verdict.draw))))
        same = [each for each in simpler if each.ranks == verdict.draw.ranks and each != verdict.draw]
        like = (
            each for each in verdicts_of(same, limit=limit, device=device) if each.outcome == verdict.outcome
        )
        found = next(like, None)
        if found is None:
            return verdict
        verdict = found


def faults(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that ours is to blame for."""
    return [each for each in verdicts if each.is_fault]
