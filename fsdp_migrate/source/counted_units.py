"""Counts of a model's FSDP units, ``len(FSDP.fsdp_modules(model))``, where a framework shards it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


COUNTED: Final = (
    "stays: this counts the units that the framework's FSDP2 makes, which may be others than those of its "
    "FSDP1: then the number is another one"
)
_COUNTS: Final = frozenset({"len", "sum"})
_MODULES: Final = frozenset({"modules", "named_modules"})
_COMPREHENSIONS: Final = (cst.GeneratorExp, cst.ListComp, cst.SetComp)


def counts_of_units(source: Source) -> Iterator[cst.Call]:
    """Yield the calls that count the units of a model which a framework shards."""
    yield from dict.fromkeys(
        count
        for units, model in _units(source)
        if source.models.sharded_by(model)
        for count in _counts_of(source, units)
    )


def _units(source: Source) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what holds a model's units, with the model."""
    for call in source.calls:
        if source.class_function(call) == "fsdp_modules" and len(call.args) == 1 and not call.args[0].star:
            yield call, call.args[0].value
    for kind in _COMPREHENSIONS:
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, _COMPREHENSIONS)
            over = node.for_in.iter
            func = over.func if isinstance(over, cst.Call) else None
            if isinstance(func, cst.Attribute) and func.attr.value in _MODULES and _asks(source, node):
                yield node, func.value


def _asks(source: Source, node: cst.BaseComp) -> bool:
    """Tell whether a comprehension asks each module if it is FSDP1's."""
    asked = (call.args for call in walk_for(node, cst.Call) if dotted(call.func) == "isinstance")
    return any(len(args) == 2 and source.index.fsdp1(args[1].value) == catalog.FSDP for args in asked)


def _counts_of(source: Source, units: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls that count what holds them, by its name too."""
    above = source.index.parents[units]
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    readers = source.readers(target) if isinstance(target, cst.Name) else []
    for node in (units, *readers):
        arg = source.index.parents[node]
        call = source.index.parents[arg] if isinstance(arg, cst.Arg) else None
        if isinstance(call, cst.Call) and dotted(call.func) in _COUNTS:
            yield call
