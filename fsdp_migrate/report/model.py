"""What a report holds, whatever it is written as: a verdict, what was compared, tables, a plot, a tree.

Texts are plain, and may be anybody's: whoever writes a report makes them harmless. In a text, what stands
between backticks is code. What is in ``rows`` may be cut where a report would become too long; ``more`` says
how many rows were left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Iterator


Tone = Literal["good", "warning", "bad", "neutral"]
"""How something is to be taken; it is always said in words as well."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name, a path or a command: every character of it counts."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number: what it is sorted by, and what is shown."""

    value: float
    shown: str


@dataclass(frozen=True, slots=True)
class Link:
    """A way to a page on the web.

    Raises:
        ValueError: It is no address of https.
    """

    text: str
    url: str

    def __post_init__(self) -> None:
        if not self.url.startswith("https://"):
            raise ValueError(f"A link of a report leads to {self.url!r}, which is no address of https.")


@dataclass(frozen=True, slots=True)
class Badge:
    """A word of few, such as a fidelity."""

    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a finding; its meaning is told at the end."""

    text: str


Cell = str | Name | Number | Link | Badge | Code


@dataclass(frozen=True, slots=True)
class Facts:
    """What was looked at: names, and what they are."""

    title: str
    rows: tuple[tuple[str, Cell], ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to sort and search. ``numbers`` are the columns of numbers; ``folded``: shut at first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intro: str = ""
    numbers: frozenset[str] = frozenset()
    folded: bool = False
    more: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over steps. ``marks`` are places on the x axis; ``says`` tells what is to be seen."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    says: str
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tree: how deep it stands, its name, what it is, and its share of the whole.

    ``folded`` hides what is below it until it is asked for.
    """

    depth: int
    name: str
    about: str
    size: str = ""
    share: float = 0.0
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in order, each below the last one before it that is less deep."""

    title: str
    rows: tuple[Node, ...]
    intro: str = ""
    more: int = 0


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type; shown as it is typed."""

    rows: tuple[str, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    text: str
    commands: Commands = Commands(())


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do, in this order."""

    title: str
    rows: tuple[Step, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences."""

    title: str
    rows: tuple[str, ...]
    more: int = 0


Section = Facts | Table | Plot | Tree | Steps | Notes


@dataclass(frozen=True, slots=True)
class Report:
    """One report.

    Attributes:
        title: What was done, such as ``fsdp-migrate parity``.
        verdict: What came of it, in one line.
        tone: Whether that is good.
        sections: All else, what matters most first.
        versions: Of what took part.
        command: What to type for the same again.
        made: When.
    """

    title: str
    verdict: str
    tone: Tone
    sections: tuple[Section, ...]
    versions: tuple[tuple[str, str], ...]
    command: str
    made: str


def codes_in(report: Report) -> list[str]:
    """Return the codes of findings that the tables of a report name, each once, in order.

    Example:
        >>> table = Table("Findings", ("code",), ((Code("FM012"),), (Code("FM012"),)))
        >>> codes_in(Report("t", "v", "good", (table,), (), "", ""))
        ['FM012']
    """
    return list(dict.fromkeys(_codes(report)))


def _codes(report: Report) -> Iterator[str]:
    for section in report.sections:
        if isinstance(section, Table):
            yield from (cell.text for row in section.rows for cell in row if isinstance(cell, Code))
