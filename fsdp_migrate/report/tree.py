"""A tree as nested lists: what opens and what closes where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.report.model import Node


DEEPEST = 24
"""No deeper are lists nested: readers of HTML give up at some depth."""


@dataclass(frozen=True)
class Branch:
    """A node in nested lists: whether a list opens below it, and how many close behind it."""

    node: Node
    opens: bool
    closes: int


def nested(nodes: Sequence[Node]) -> Iterator[Branch]:
    """Yield each node with the lists that open and close at it.

    Example:
        >>> from fsdp_migrate.report.model import Node
        >>> found = nested([Node(0, "a", ""), Node(1, "b", ""), Node(2, "c", ""), Node(1, "d", "")])
        >>> [(each.node.name, each.opens, each.closes) for each in found]
        [('a', True, 0), ('b', True, 0), ('c', False, 1), ('d', False, 1)]
    """
    depths = list(_depths(nodes))
    for node, depth, following in zip(nodes, depths, [*depths[1:], 0], strict=True):
        yield Branch(node, following > depth, max(0, depth - following))


def _depths(nodes: Sequence[Node]) -> Iterator[int]:
    """Yield how deep each stands: the first not at all, and none more than one deeper than the one before."""
    before = -1
    for node in nodes:
        before = min(node.depth, before + 1, DEEPEST)
        yield before
