"""Plots: whatever the losses are, lines lie within the picture and ticks are few."""

from __future__ import annotations

import math

import pytest

from fsdp_migrate.report.model import Plot, Series
from fsdp_migrate.report.plot import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, draw


pytestmark = pytest.mark.any_torch


def plot_of(*values: float) -> Plot:
    points = tuple((float(step), value) for step, value in enumerate(values, 1))
    return Plot("Losses", "step", "loss", (Series("FSDP1", points), Series("FSDP2", points[1:])), "Same.")


@pytest.mark.parametrize(
    "values",
    [
        (1.0,),
        (2.5, 2.5, 2.5),
        (0.0, 5e-324),
        (1e308, -1e308, 1.7e308),
        (1.0, 1.0 + 2**-52),
        (1e16, 1e16 + 2),
        (-3.0, 4.0, float("nan"), float("inf")),
        tuple(math.sin(step) for step in range(5000)),
    ],
    ids=lambda values: repr(values[:3]),
)
def test_everything_lies_within_the_picture(values: tuple[float, ...]) -> None:
    drawing = draw(plot_of(*values))
    assert drawing is not None
    for line in drawing.lines:
        assert len(line.points) <= MOST_POINTS + 2
        for x, y in line.points:
            assert LEFT <= x <= WIDTH - RIGHT
            assert TOP <= y <= HEIGHT - BOTTOM
    for ticks in (drawing.x_ticks, drawing.y_ticks):
        assert len(ticks) <= 13
        assert all(TOP <= tick.at <= WIDTH for tick in ticks)


def test_steps_are_whole_numbers() -> None:
    drawing = draw(plot_of(4.0, 3.0, 2.0))
    assert drawing is not None
    assert [tick.text for tick in drawing.x_ticks] == ["1", "2", "3"]


def test_highs_and_lows_of_long_runs_stay() -> None:
    values = [0.5] * 10_000
    values[4321], values[8765] = 9.0, -9.0
    drawing = draw(plot_of(*values))
    assert drawing is not None
    heights = {y for _, y in drawing.lines[0].points}
    assert {TOP, HEIGHT - BOTTOM} <= heights
    assert drawing.lines[0].marked == ()


def test_what_is_no_number_is_counted_and_not_drawn() -> None:
    drawing = draw(plot_of(1.0, float("nan"), 2.0))
    assert drawing is not None
    assert drawing.not_drawn == 2
    assert draw(plot_of(float("nan"), float("inf"))) is None
