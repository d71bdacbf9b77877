"""The names that the assignments of a source give values, those of tuples too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, targets_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


@dataclass(frozen=True)
class Made:
    """A name that an assignment gives a value."""

    assign: cst.Assign | cst.AnnAssign | cst.Expr
    """It, or the call by which an object keeps what it is given: ``ema.reset(net)``."""
    name: str
    value: cst.BaseExpression
    is_one_of: bool = False
    """Whether the value is a tuple, of which the name is one part."""


def assigned(source: Source) -> Iterator[cst.Assign | cst.AnnAssign]:
    """Yield every assignment, those of fields of classes that say a type too."""
    yield from source.assignments
    for node in source.index.by_kind.get(cst.AnnAssign, ()):
        line = cst.ensure_type(node, cst.AnnAssign)
        yield from () if line.value is None else (line,)


def made_by(assign: cst.Assign | cst.AnnAssign | cst.Expr) -> Iterator[Made]:
    """Yield the names that an assignment gives values."""
    for target in targets_of(assign):
        value = assign.value
        if value is None:
            continue
        if not isinstance(target, (cst.Tuple, cst.List)):
            if (name := dotted(target)) is not None:
                yield Made(assign, name, value)
            continue
        values = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
        is_seen = len(values) == len(target.elements)
        for place, part in enumerate(target.elements):
            if (name := dotted(part.value)) is not None:
                given = values[place].value if is_seen else value
                yield Made(assign, name, given, is_one_of=not is_seen)
