"""Assignments that say of which type a name is, as the plain ones that they are otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from fsdp_migrate.plain_assigns import BLOCKS


if TYPE_CHECKING:
    from collections.abc import Sequence


_FIELDS: dict[type[cst.CSTNode], tuple[str, ...]] = {cst.SimpleStatementLine: ("body",)}


@dataclass(frozen=True, eq=False, repr=False)
class Note(cst.Annotation):
    """The type that an assignment says, with the space behind it: it stands before the ``=`` of a target."""

    before_equal: str = " "

    def _visit_and_replace_children(self, visitor: cst.CSTVisitorT) -> Note:
        said = super()._visit_and_replace_children(visitor)
        return Note(
            said.annotation,
            said.whitespace_before_indicator,
            said.whitespace_after_indicator,
            self.before_equal,
        )

    def _codegen_impl(self, state: Any, default_indicator: str | None = None) -> None:
        super()._codegen_impl(state, default_indicator or ":")
        state.add_token(self.before_equal)


@dataclass(frozen=True, eq=False, repr=False)
class NotedAssign(cst.Assign):
    """``payload: dict = {...}``: an assignment for all who look for one, with the type that it says.

    What is written out is the note in its target, which stays there where an edit changes the value.
    """

    annotation: Note = field(kw_only=True)


def with_plain_assigns(module: cst.Module) -> cst.Module:
    r"""Return a module in which annotated assignments are plain ones, but the fields of classes.

    Those of a class may be the fields of a dataclass, and what has no value gives none.

    Example:
        >>> module = with_plain_assigns(cst.parse_module("x : int  = 1\ny: int\nclass A:\n    z: int = 1"))
        >>> print(module.code)
        x : int  = 1
        y: int
        class A:
            z: int = 1
        >>> [type(each.body[0]).__name__ for each in (*module.body[:2], module.body[2].body)]
        ['NotedAssign', 'AnnAssign', 'SimpleStatementLine']
    """
    return cst.ensure_type(_plain(module, in_class=False), cst.Module)


def _plain(node: cst.CSTNode, *, in_class: bool) -> cst.CSTNode:
    kind = type(node)
    if kind is cst.AnnAssign:
        return node if in_class else _noted(cst.ensure_type(node, cst.AnnAssign))
    names = _FIELDS.get(kind)
    if names is None:
        # No expression has statements in it: a lambda's body is none.
        fields = kind.__dataclass_fields__
        names = _FIELDS[kind] = tuple(name for name in BLOCKS if name in fields)
    if kind is cst.ClassDef or kind is cst.FunctionDef:
        in_class = kind is cst.ClassDef
    changes: dict[str, object] = {}
    for name in names:
        value = getattr(node, name)
        if isinstance(value, (list, tuple)):
            after = _all_plain(value, in_class=in_class)
            changes.update({name: after} if after is not value else {})
        elif value is not None and (one := _plain(value, in_class=in_class)) is not value:
            changes[name] = one
    return node.with_changes(**changes) if changes else node


def _all_plain(nodes: Sequence[cst.CSTNode], *, in_class: bool) -> Sequence[cst.CSTNode]:
    """Return the nodes, the same list where there is nothing to do."""
    after = [_plain(each, in_class=in_class) for each in nodes]
    return after if any(a is not b for a, b in zip(after, nodes, strict=True)) else nodes


def _noted(node: cst.AnnAssign) -> cst.BaseSmallStatement:
    if node.value is None or not isinstance(node.equal, cst.AssignEqual):
        return node
    before, after = (each for each in (node.equal.whitespace_before, node.equal.whitespace_after))
    said = node.annotation
    note = Note(
        said.annotation,
        said.whitespace_before_indicator,
        said.whitespace_after_indicator,
        before.value if isinstance(before, cst.SimpleWhitespace) else " ",
    )
    # LibCST writes out what stands before the `=` whatever it is, and has no other place for it.
    target = cst.AssignTarget(node.target, cast("cst.SimpleWhitespace", note), cast("Any", after))
    return NotedAssign([target], node.value, node.semicolon, annotation=note)
