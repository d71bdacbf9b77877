"""The records that both runs of a script wrote as JSON, or as JSON lines: which values in them differ.

They are what is printed, kept in a file: losses, norms, rates. What names a time or memory differs in every
run, and is left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.findings import counted
from fsdp_migrate.parity.of_each_run import is_of_each_run


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Leaves = Mapping[tuple[str | int, ...], Any]


_LINES: Final = (".jsonl", ".ndjson")
SUFFIXES: Final = (".json", *_LINES)
"""What files of records end in."""
_ROUNDED: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Records:
    """A file of records that both runs wrote with other bytes.

    ``num_values`` are those that both have, ``num_others`` those of them that differ by more than rounding.
    ``words`` say which one differs most, and what else there is.
    """

    path: str
    num_values: int
    num_others: int
    num_alone: int = 0
    words: str = ""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs by more than rounding, and no run has a value that the other has not."""
        return not self.num_others and not self.num_alone


def compare_records(path: str, before: str, after: str) -> Records | None:
    """Compare the texts of a file that two runs wrote; None where one of them is no JSON.

    Args:
        path: What the file is called: by its end one record is a line, or the whole.
        before: What it holds under FSDP1.
        after: And under FSDP2.

    Example:
        >>> compare_records("m.jsonl", '{"loss": 0.5, "time": 1}', '{"loss": 0.25, "time": 2}').words
        'of 1 value 1 differs; the most does `loss` of line 1, 0.5 under FSDP1 and 0.25 under FSDP2'
    """
    is_of_lines = path.endswith(_LINES)
    try:
        mine, others = (dict(_leaves(_read(text, is_of_lines=is_of_lines))) for text in (before, after))
    except (ValueError, RecursionError):
        return None
    both = [each for each in mine if each in others]
    parts = {each: _part(mine[each], others[each]) for each in both}
    found = [each for each in both if parts[each] > _ROUNDED]
    alone = [[each for each in one if each not in other] for one, other in ((mine, others), (others, mine))]
    said = []
    if found:
        most = max(found, key=parts.__getitem__)
        said.append(
            f"of {counted(len(both), 'value')} {len(found):,} {'differs' if len(found) == 1 else 'differ'}; "
            f"the most does {_named(most, is_of_lines=is_of_lines)}, {mine[most]!r} under FSDP1 and "
            f"{others[most]!r} under FSDP2"
        )
    if rounded := sum(0 < part <= _ROUNDED for part in parts.values()):
        said.append(
            f"{counted(rounded, 'value')} {'differs' if rounded == 1 else 'differ'} by rounding alone"
        )
    for keys, which in zip(alone, ("FSDP1", "FSDP2"), strict=True):
        if keys:
            first = _named(keys[0], is_of_lines=is_of_lines)
            said.append(f"under {which} alone {counted(len(keys), 'value')}, the first {first}")
    number = len(alone[0]) + len(alone[1])
    return Records(
        path=path, num_values=len(both), num_others=len(found), num_alone=number, words="; ".join(said)
    )


def _read(text: str, *, is_of_lines: bool) -> Any:
    if not is_of_lines:
        return json.loads(text)
    return {number: json.loads(line) for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def _leaves(found: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the values of a document by where they stand, but for those of each run."""
    if isinstance(found, dict):
        for key, value in found.items():
            if not isinstance(key, str) or not is_of_each_run(key):
                yield from _leaves(value, (*above, key))
    elif isinstance(found, list):
        for place, value in enumerate(found):
            yield from _leaves(value, (*above, place))
    else:
        yield above, found


def _part(one: Any, other: Any) -> float:
    """Return by what part of itself a value differs; of what is no number, all."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if one == other or (numbers and math.isnan(one) and math.isnan(other)):
        return 0.0
    if not numbers or isinstance(one, bool) or isinstance(other, bool):
        return math.inf
    part = abs(one - other) / max(abs(one), abs(other))
    # One that is infinite, or none, is no rounding of the other.
    return math.inf if math.isnan(part) else max(part, math.ulp(0.0))


def _named(place: tuple[str | int, ...], *, is_of_lines: bool) -> str:
    keys = place[1:] if is_of_lines else place
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    said = f"`{name}`" if name else "the value"
    return f"{said} of line {place[0]}" if is_of_lines else said
