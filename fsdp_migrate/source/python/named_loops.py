"""The loops that go through what ``named_parameters()`` gives, at once or by a list or a dict of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index

    Named = tuple[cst.For | cst.BaseComp, tuple[str, str]]


_HOLD: Final = frozenset(
    {"OrderedDict", "collections.OrderedDict", "dict", "iter", "list", "sorted", "tuple"}
)
_DEEPEST: Final = 3


def named_loops(index: Index, call: cst.Call) -> Iterator[Named]:
    """Yield each loop over names and parameters, with what it calls the two.

    Args:
        index: The source.
        call: ``model.named_parameters()``.
    """
    for above in index.ancestors(call):
        if isinstance(above, (cst.For, cst.CompFor)) and call in walk_for(above.iter, cst.Call):
            yield from _of_loop(index, above, 0)
            return
        if isinstance(above, cst.BaseStatement):
            break
    yield from _held(index, call, 0)


def _of_loop(index: Index, loop: cst.For | cst.CompFor, depth: int) -> Iterator[Named]:
    target = loop.target
    if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
        return
    names = text_of(target.elements[0].value), text_of(target.elements[1].value)
    around = index.parents[loop] if isinstance(loop, cst.CompFor) else loop
    if isinstance(around, (cst.For, cst.BaseComp)):
        yield around, names
    if isinstance(around, cst.BaseComp) and _keeps_both(around, names):
        yield from _held(index, around, depth + 1)


def _keeps_both(node: cst.BaseComp, names: tuple[str, str]) -> bool:
    """Tell whether a comprehension gives the names and the parameters on: ``{n: p for n, p in ...}``."""
    if isinstance(node, cst.DictComp):
        return (text_of(node.key), text_of(node.value)) == names
    pair = node.elt if isinstance(node, (cst.GeneratorExp, cst.ListComp)) else None
    return isinstance(pair, cst.Tuple) and tuple(text_of(each.value) for each in pair.elements) == names


def _held(index: Index, value: cst.BaseExpression, depth: int) -> Iterator[Named]:
    """Yield the loops over a name that holds a value, as it is or as a list or a dict of it."""
    while isinstance(arg := index.parents[value], cst.Arg):
        call = index.parents[arg]
        if not isinstance(call, cst.Call) or call.args[0] is not arg or dotted(call.func) not in _HOLD:
            return
        value = call
    assign = index.parents[value]
    targets = [each.target for each in assign.targets] if isinstance(assign, cst.Assign) else []
    if depth > _DEEPEST or len(targets) != 1 or not isinstance(targets[0], cst.Name):
        return
    for kind in (cst.For, cst.CompFor):
        for loop in index.by_kind.get(kind, ()):
            assert isinstance(loop, (cst.For, cst.CompFor))
            over = loop.iter
            if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute):
                over = over.func.value if over.func.attr.value == "items" else over
            is_its = isinstance(over, cst.Name) and over.value == targets[0].value and over in index.scopes
            if isinstance(over, cst.Name) and is_its and last_value(index, over) is value:
                yield from _of_loop(index, loop, depth)
