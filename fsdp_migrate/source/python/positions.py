"""Where nodes stand in a source."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from libcst.metadata.position_provider import PositionProvider, PositionProvidingCodegenState


if TYPE_CHECKING:
    import libcst as cst


_NEWLINE = re.compile(r"\r\n?|\n")
_NOTHING = nullcontext()


class Positions:
    r"""The line and the column at which each node of a module begins.

    What LibCST's ``PositionProvider`` says of beginnings, in a fraction of its time: it counts characters
    and asks for lines only where somebody wants to know.

    Example:
        >>> import libcst
        >>> module = libcst.parse_module("x = 1\nyy = x\n")
        >>> Positions(module, module.code).of(module.body[1].body[0].value)
        (2, 6)
    """

    def __init__(self, module: cst.Module, code: str) -> None:
        state = _Counting(module)
        module._codegen(state)  # noqa: SLF001 - as LibCST's own providers of positions do
        self._begins = state.begins
        self._same = state.same
        self._lines = [0, *(match.end() for match in _NEWLINE.finditer(code))]

    def of(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the line and the column of a node, both from 1."""
        while id(node) in self._same:
            node = self._same[id(node)]
        begin = self._begins[id(node)]
        line = bisect_right(self._lines, begin)
        return line, begin - self._lines[line - 1] + 1


class _Counting(PositionProvidingCodegenState):
    """Counts the characters of a source, and notes at which each node begins."""

    __slots__ = ("begins", "offset", "same")

    def __init__(self, module: cst.Module) -> None:
        super().__init__(module.default_indent, module.default_newline, PositionProvider())
        self.offset = 0
        # By identity: the nodes' own hash is a call of Python's.
        self.begins: dict[int, int] = {}
        self.same: dict[int, cst.CSTNode] = {}

    def add_indent_tokens(self) -> None:
        self.offset += sum(map(len, self.indent_tokens))

    def add_token(self, value: str) -> None:
        self.offset += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.begins[id(node)] = self.offset

    def after_codegen(self, node: cst.CSTNode) -> None:
        pass

    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Any:
        if start_node is not None:
            self.same[id(node)] = start_node
        else:
            self.begins[id(node)] = self.offset
        return _NOTHING
