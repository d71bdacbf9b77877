"""Answers to questions that may lead back to themselves, each worked out once for all who ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple


if TYPE_CHECKING:
    from collections.abc import Callable

    import libcst as cst

    Ask = Callable[[cst.BaseExpression], bool]


class _Answer(NamedTuple):
    """An answer, and where it holds: an answer that was cut short is another one below other questions."""

    answer: bool
    asked: frozenset[cst.CSTNode]
    """What was asked about for it."""
    met: frozenset[cst.CSTNode]
    """What of that was being asked already, and so was taken for no."""
    depth: int
    height: int
    """How many questions it took, one in another."""
    is_cut: bool
    """Whether questions were left out because too many were open."""


@dataclass(eq=False)
class _Open:
    """A question that is being answered."""

    asked: set[cst.CSTNode] = field(default_factory=set)
    height: int = 0
    is_cut: bool = False

    def note(self, inner: _Answer, node: cst.CSTNode) -> None:
        self.asked |= inner.asked
        self.asked.add(node)
        self.height = max(self.height, inner.height + 1)
        self.is_cut = self.is_cut or inner.is_cut


@dataclass(eq=False)
class Answers:
    """Asks, up to a depth, and never for what is being asked: that is no, and so is what is too deep.

    What was answered is kept, and is the answer again where asking anew would end at the same places.
    """

    deepest: int
    _stack: list[cst.CSTNode] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _known: dict[tuple[cst.CSTNode, Ask], list[_Answer]] = field(default_factory=dict)

    def once(self, node: cst.BaseExpression, ask: Ask) -> bool:
        """Return what ``ask`` says of a node."""
        if node in self._stack:
            self._note(node)
            return False
        if len(self._stack) > self.deepest:
            self._note(node)
            if self._open:
                self._open[-1].is_cut = True
            return False
        known = self._known.setdefault((node, ask), [])
        found = next(filter(self._holds, known), None)
        if found is None:
            found = self._work_out(node, ask)
            known.append(found)
        if self._open:
            self._open[-1].note(found, node)
        return found.answer

    def _note(self, node: cst.CSTNode) -> None:
        if self._open:
            self._open[-1].asked.add(node)

    def _holds(self, known: _Answer) -> bool:
        depth = len(self._stack)
        if depth != known.depth and (known.is_cut or depth + known.height > self.deepest):
            return False
        return {each for each in self._stack if each in known.asked} == known.met

    def _work_out(self, node: cst.BaseExpression, ask: Ask) -> _Answer:
        here, depth = _Open(), len(self._stack)
        above = frozenset(self._stack)
        self._stack.append(node)
        self._open.append(here)
        try:
            answer = ask(node)
        finally:
            self._stack.pop()
            self._open.pop()
        asked = frozenset(here.asked)
        return _Answer(answer, asked, asked & above, depth, here.height, here.is_cut)
