"""The tree of units with their bytes; units that are alike and stand together are one line, which opens."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.filesize import decimal

from fsdp_migrate.findings import counted
from fsdp_migrate.report.model import Node, Tree


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.sharding.units import UnitSummary


_FEW = 3
_INTRO = (
    "Each line is a unit, which is gathered as a whole: its parameters, the bytes of them at rest on the "
    "rank that holds most, and those while it is gathered."
)


@dataclass
class _Unit:
    """A unit with those that stand below it."""

    summary: UnitSummary
    below: list[_Unit] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " + ".join(name or "(root)" for name in self.summary.names)

    @property
    def shape(self) -> tuple[object, ...]:
        """What it has in common with units that differ in nothing but their names."""
        return (
            replace(self.summary, names=()),
            len(self.summary.names),
            *(each.shape for each in self.below),
        )


def unit_tree(units: Sequence[UnitSummary]) -> Tree | None:
    """Return the tree of units, of which the last is the root; None where there are none."""
    if not units:
        return None
    nodes = tuple(_nodes(_hang(units), 0, sum(unit.numel for unit in units) or 1))
    return Tree(f"Units: {len(units):,}", nodes, _INTRO)


def _hang(units: Sequence[UnitSummary]) -> _Unit:
    """Hang each unit below the nearest one above it; they stay in order."""
    root = _Unit(units[-1])
    known = {"": root}
    made = {id(unit): _Unit(unit) for unit in units[:-1]}
    for unit in sorted(units[:-1], key=lambda unit: unit.names[0].count(".")):
        known[unit.names[0]] = made[id(unit)]
    for unit in units[:-1]:
        above = unit.names[0].rpartition(".")[0]
        while above not in known:
            above = above.rpartition(".")[0]
        known[above].below.append(made[id(unit)])
    return root


def _nodes(unit: _Unit, depth: int, total: int) -> Iterator[Node]:
    yield _node(unit, depth, total)
    for _, group in itertools.groupby(unit.below, key=lambda each: each.shape):
        yield from _group(list(group), depth + 1, total)


def _group(alike: list[_Unit], depth: int, total: int) -> Iterator[Node]:
    if len(alike) <= _FEW:
        for each in alike:
            yield from _nodes(each, depth, total)
        return
    first = alike[0].summary
    about = f"{counted(len(alike), 'unit')} alike, of each: {_about(first)}"
    share = sum(map(_numel, alike)) / total
    yield Node(depth, f"{alike[0].name} to {alike[-1].name}", about, _size(first), share, folded=True)
    for each in alike:
        yield from _nodes(each, depth + 1, total)


def _numel(unit: _Unit) -> int:
    return unit.summary.numel + sum(map(_numel, unit.below))


def _node(unit: _Unit, depth: int, total: int) -> Node:
    summary = unit.summary
    return Node(depth, unit.name, _about(summary), _size(summary), summary.numel / total)


def _about(summary: UnitSummary) -> str:
    return ", ".join(_words(summary))


def _words(summary: UnitSummary) -> Iterable[str]:
    yield f"`{summary.module_class}`"
    yield counted(summary.numel, "parameter")
    if summary.param_dtype:
        yield summary.param_dtype
    yield "freed after forward" if summary.frees_after_forward else "kept after forward"


def _size(summary: UnitSummary) -> str:
    if summary.sharded is None or summary.unsharded is None:
        return ""
    return f"{decimal(summary.sharded)} at rest, {decimal(summary.unsharded)} gathered"
