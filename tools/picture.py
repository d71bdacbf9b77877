"""Draws a flowchart of Mermaid as an SVG for the site, which loads no program from elsewhere to do it.

It knows boxes, groups of boxes, and arrows, as ``architecture_page.py`` writes them. A box stands on the
floor above everything that it points to, and a group is a column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from html import escape


BLOCK = re.compile(r"^```mermaid\n(flowchart TD\n.*?)^```$", re.MULTILINE | re.DOTALL)
_BOX = re.compile(r'^( +)(\w+)\["(.+)"\]$')
_GROUP = re.compile(r'^ +subgraph \w+\["(.+)"\]$')
_ARROW = re.compile(r"^ +(\w+) --> (\w+)$")
_LETTER, _LINE, _FLOOR, _GAP = 7.0, 16, 62, 14


def draw(text: str) -> str:
    r"""Return the SVG of a flowchart.

    Example:
        >>> draw('flowchart TD\n  a["top"]\n  b["below"]\n  a --> b').count("<rect")
        2
    """
    labels, columns, arrows = _read(text)
    floors = {box: _floor(box, arrows) for box in labels}
    for box in labels.keys() - arrows.keys():  # what points nowhere stands right below what points to it
        floors[box] = min((floors[one] for one, found in arrows.items() if box in found), default=1) - 1
    top = max(floors.values())
    places: dict[str, tuple[float, float, float, float]] = {}
    shapes: list[str] = []
    left = 0.0
    for title in sorted(columns, key=lambda name: (name != "adapters/", name)):
        right = _place(columns[title], left, floors, labels, places)
        if title:
            shapes.append(f'<text class="group" x="{left + _GAP:.0f}" y="14">{escape(title)}</text>')
            box = f'x="{left + 2:.0f}" y="0" width="{right - left - 4:.0f}" height="{(top + 1) * _FLOOR}"'
            shapes.insert(0, f'<rect class="group" {box} rx="6"/>')
        left = right
    shapes += [_line(places[one], places[other]) for one, found in arrows.items() for other in sorted(found)]
    for box, (x, y, width, height) in places.items():
        shapes.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4"/>')
        lines = _lines(labels[box])
        for number, line in enumerate(lines):
            at = y + height / 2 + 4 + (number - (len(lines) - 1) / 2) * _LINE
            shapes.append(f'<text x="{x + width / 2:.0f}" y="{at:.0f}">{escape(line)}</text>')
    head = 'id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    head = f'<defs><marker {head}><path d="M0 0 8 4 0 8z"/></marker></defs>'
    size = f'viewBox="0 0 {left:.0f} {(top + 1) * _FLOOR}"'
    name = "The packages, and which imports which; the text below names them one by one"
    return (
        f'<div class="picture" tabindex="0" role="region" aria-label="Picture of the packages">'
        f'<svg {size} role="img" aria-label="{name}">{head}{"".join(shapes)}</svg></div>'
    )


def _read(text: str) -> tuple[dict[str, str], dict[str, list[str]], dict[str, set[str]]]:
    labels: dict[str, str] = {}
    columns: defaultdict[str, list[str]] = defaultdict(list)
    arrows: defaultdict[str, set[str]] = defaultdict(set)
    group = ""
    for line in text.splitlines():
        if found := _GROUP.match(line):
            group = found[1]
        elif line.strip() == "end":
            group = ""
        elif found := _BOX.match(line):
            labels[found[2]] = found[3]
            columns[group].append(found[2])
        elif found := _ARROW.match(line):
            arrows[found[1]].add(found[2])
    return labels, columns, arrows


def _floor(box: str, arrows: dict[str, set[str]]) -> int:
    return 1 + max((_floor(below, arrows) for below in arrows.get(box, ())), default=-1)


def _place(
    boxes: list[str],
    left: float,
    floors: dict[str, int],
    labels: dict[str, str],
    places: dict[str, tuple[float, float, float, float]],
) -> float:
    """Place the boxes of a column, each floor in its middle; return where the column ends."""
    top = max(floors.values())
    rows: defaultdict[int, list[str]] = defaultdict(list)
    for box in boxes:
        rows[floors[box]].append(box)
    widths = {box: max(map(len, _lines(labels[box]))) * _LETTER + 16 for box in boxes}
    full = max(sum(widths[box] + _GAP for box in row) for row in rows.values()) + _GAP
    for floor, row in rows.items():
        x = left + (full - sum(widths[box] + _GAP for box in row) + _GAP) / 2
        for box in row:
            height = len(_lines(labels[box])) * _LINE + 10
            places[box] = (x, (top - floor) * _FLOOR + 38 - height / 2, widths[box], height)
            x += widths[box] + _GAP
    return left + full


def _lines(label: str) -> list[str]:
    parts = label.split(", ")
    return [f"{part}," for part in parts[:-1]] + parts[-1:]


def _line(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> str:
    x, y = one[0] + one[2] / 2, one[1] + one[3]
    end, bottom = other[0] + other[2] / 2, other[1]
    bend = (bottom - y) / 2
    curve = f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {end:.0f} {bottom - bend:.0f} {end:.0f} {bottom:.0f}"
    return f'<path class="arrow" d="{curve}" marker-end="url(#head)"/>'
