"""What two runs of a script printed: which lines differ, without what names the run."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.parity.of_each_run import NUMBER, numbers_of, without_bars, without_those


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


MOST_LINES = 20
"""How many lines of a kind are kept."""
_WHOLE_NUMBER = re.compile(r"[-+]?\d+")
_ROUNDED = 1e-6
_TIMES = re.compile(
    r"\b(?:elapsed|eta|ms|secs?|seconds?|speed|throughput|time)\b|\d ?m?s\b|/s(?:ec)?\b", re.IGNORECASE
)
_OF_PARAMETERS = re.compile(r"\bparam(?:eter)?s?\b", re.IGNORECASE)
_THOUSANDS = re.compile(r" ?(?:[KkMBT]|thousand|million|billion)\b")
# Of two ranks each has half, and what FSDP1 filled up.
_MANY_MORE = 1.5
_WARNS = re.compile(r"[Ww]arn(?:ing)?\b|\bW\d{4} |\*{9}")
# What torchrun and logging write before a line, and what differs whenever something runs.
_OF_THIS_RUN = re.compile(
    r"\b(?:\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|\d{4}-\d\d-\d\d)\b|\bpid[ =:]*\d+|0x[0-9a-f]+"
)


@dataclass(frozen=True)
class Run:
    """One run of the script: where it ran, what it printed, and where it left its files."""

    folder: Path
    printed: tuple[str, ...]
    out: Path
    placed: Mapping[str, str] = field(default_factory=dict)  # what stands for paths that it was given


def printed_lines(first: Run, second: Run) -> tuple[tuple[tuple[str, str], ...], tuple[list[str], list[str]]]:
    """Return lines that say the same with other numbers, and those of each run without such a line.

    Times, speeds and memory are no other numbers. Which of several belong together goes by their order.
    """
    mine, other = ([shown_line(line, each) for line in _said(each.printed)] for each in (first, second))
    left = _without(mine, other), _without(other, mine)
    waiting: dict[str, list[str]] = {}
    for line in left[1]:
        waiting.setdefault(NUMBER.sub("#", line), []).append(line)
    pairs, alone = [], []
    for line in left[0]:
        same = waiting.get(NUMBER.sub("#", line))
        if same:
            pairs.append((line, same.pop(0)))
        else:
            alone.append(line)
    others = Counter(line for lines in waiting.values() for line in lines)
    return tuple(pairs), (alone, [line for line in left[1] if others[line] > 0])


def most_pairs(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return those pairs of lines that differ most, in the order in which they were printed."""
    ordered = sorted(range(len(pairs)), key=lambda place: printed_order(pairs[place]))
    return tuple(pairs[place] for place in sorted(ordered[:MOST_LINES]))


def printed_order(pair: tuple[str, str]) -> tuple[bool, float]:
    """Put first what differs most, and last what may be a time, for all that is known of it.

    Example:
        >>> printed_order(("8 rows", "4 rows")) < printed_order(("time, at last: 8", "time, at last: 4"))
        True
    """
    may_be_time = any(map(_TIMES.search, pair)) and not any(is_other for _, is_other in numbers_of(pair[0]))
    return may_be_time, -part_that_differs(*pair)


def counts_whole(pairs: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a line counts parameters, and many more of them under FSDP2: all, where it was a shard.

    Example:
        >>> counts_whole([("Total params: 21.4 K", "Total params: 42.8 K")])
        True
        >>> counts_whole([("params: 42.9 K", "params: 42.8 K"), ("loss 0.1", "loss 0.3")])
        False
    """
    return any(
        float(theirs[0]) > _MANY_MORE * float(mine[0]) > 0
        and _is_count(mine, one)
        and _is_count(theirs, other)
        for one, other in pairs
        if _OF_PARAMETERS.search(one)
        for (mine, _), (theirs, _) in zip(numbers_of(one), numbers_of(other), strict=False)
    )


def _is_count(number: re.Match[str], line: str) -> bool:
    """Tell whether a number may be one of things: a whole one, or one of thousands. A norm is none."""
    return bool(_WHOLE_NUMBER.fullmatch(number[0]) or _THOUSANDS.match(line, number.end()))


def part_that_differs(one: str, other: str) -> float:
    """Return by what part of itself a number differs most, of two lines that say the same with others.

    Times, speeds and memory do not count. One that differs by rounding of the largest fraction of the line
    differs by nothing: 1e-8 beside 0.5 is 0.

    Example:
        >>> part_that_differs("loss 0.5 of 8", "loss 0.4 of 8")
        0.2
        >>> part_that_differs("kl -1e-08 loss 0.5", "kl 3e-08 loss 0.5")
        0.0
    """
    both = zip(numbers_of(one), numbers_of(other), strict=False)
    words = [(mine[0], theirs[0]) for (mine, is_other), (theirs, _) in both if not is_other]
    fractions = [each for pair in words for each in pair if not _WHOLE_NUMBER.fullmatch(each)]
    rounding = _ROUNDED * max((abs(float(each)) for each in fractions), default=0.0)
    pairs = ((float(a), float(b), bool(_WHOLE_NUMBER.fullmatch(a))) for a, b in words)
    parts = (
        round(abs(a - b) / max(abs(a), abs(b)), 12)
        for a, b, is_whole in pairs
        if a != b and (is_whole or abs(a - b) > rounding)
    )
    return max(parts, default=0.0)


def _without(lines: list[str], others: list[str]) -> list[str]:
    """Return the lines that the others have not, or not as often, but for times, speeds and memory."""
    common, found = Counter(map(without_those, others)), []
    for line in lines:
        if common[without_those(line)]:
            common[without_those(line)] -= 1
        else:
            found.append(line)
    return found


def _said(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are no warnings, nor the line of code below one; no bars, no blank ones."""
    is_below = False
    for line in map(without_bars, lines):
        warns = _WARNS.search(line) is not None
        if not warns and line.strip() and not (is_below and line[0].isspace()):
            yield line
        is_below = warns


def shown_line(line: str, run: Run) -> str:
    """Return a line without what names the run: its folder, the hour, numbers of processes."""
    for path, word in {**run.placed, str(run.folder): "."}.items():
        line = re.sub(rf"{re.escape(path)}(?![\w-])", word, line)
    return _OF_THIS_RUN.sub("...", line).rstrip()
