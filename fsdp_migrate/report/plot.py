"""Where the lines of a plot lie: from numbers to a picture's own units."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.report.model import Plot, Series

    Points = Sequence[tuple[float, float]]


WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 14, 44
MOST_POINTS = 400
MOST_MARKED = 40
# Below this a difference cannot be divided.
_SMALLEST = 1e-290


@dataclass(frozen=True)
class Tick:
    """A line of the grid: where it is, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One series as it is drawn: its points, and those of them that get a mark."""

    name: str
    points: tuple[tuple[float, float], ...]
    marked: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """The points as SVG writes them."""
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True)
class Drawing:
    """A plot in the units of its picture. ``not_drawn`` counts what is no finite number."""

    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Tick, ...]
    not_drawn: int
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def draw(plot: Plot) -> Drawing | None:
    """Return where everything lies; None where no point is a finite number.

    Example:
        >>> from fsdp_migrate.report.model import Plot, Series
        >>> series = Series("loss", ((1, 2.0), (2, 1.0), (3, float("nan"))))
        >>> drawing = draw(Plot("Losses", "step", "loss", (series,), "They fall."))
        >>> drawing.lines[0].path, drawing.not_drawn
        ('70,14 704,256', 1)
        >>> [tick.text for tick in drawing.y_ticks]
        ['1', '1.2', '1.4', '1.6', '1.8', '2']
    """
    finite = {series.name: _finite(series) for series in plot.series}
    every = [point for points in finite.values() for point in points]
    if not every:
        return None
    across = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT, whole=True)
    up = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP, whole=False)
    lines = []
    for name, points in finite.items():
        placed = tuple((across.place(x), up.place(y)) for x, y in _thinned(points))
        lines.append(Line(name, placed, placed if len(placed) <= MOST_MARKED else ()))
    return Drawing(
        lines=tuple(lines),
        x_ticks=across.ticks,
        y_ticks=up.ticks,
        marks=tuple(Tick(across.place(x), text) for x, text in plot.marks if across.low <= x <= across.high),
        not_drawn=sum(len(series.points) for series in plot.series) - len(every),
    )


def _finite(series: Series) -> Points:
    return [(x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y)]


def _thinned(points: Points) -> Iterable[tuple[float, float]]:
    """Leave the lowest and the highest of each run of points, where there are more than can be seen."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / (MOST_POINTS // 2))
    runs = (points[start : start + size] for start in range(0, len(points), size))
    ends = ({min(run, key=_height), max(run, key=_height)} for run in runs)
    return itertools.chain.from_iterable(sorted(each) for each in ends)


def _height(point: tuple[float, float]) -> float:
    return point[1]


class _Axis:
    """From numbers to places between ``start`` and ``end``."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, whole: bool) -> None:
        self.low, self.high = min(values), max(values)
        if not math.isfinite(self.high - self.low):  # their difference is no number that a float holds
            self.low, self.high = self.low / 4, self.high / 4
            self._scale = 4.0
        else:
            self._scale = 1.0
        if self.high - self.low < _SMALLEST:
            room = abs(self.low) / 10 or 1.0
            self.low, self.high = self.low - room, self.high + room
        self._start, self._end = start, end
        self.ticks = tuple(Tick(self._at(each), f"{each * self._scale:.6g}") for each in self._steps(whole))

    def place(self, value: float) -> float:
        """Return where a number lies."""
        return self._at(value / self._scale)

    def _at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self._start + share * (self._end - self._start), 1)

    def _steps(self, whole: bool) -> list[float]:
        """Return some round numbers within, at equal distances."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
        step = max(1.0, step) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, min(last, first + 12) + 1)]
