"""Rows of a sharded model's parameters and gradients that are read or written by an index: ``p.grad[i] = 0``.

FSDP1 showed flat parts, of which it took elements. What torch does with a DTensor's was measured on two
ranks: ``tests/sharding/written_rows_bodies.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.as_before import is_a_weight, is_of_one_weight
from fsdp_migrate.source.dtensor_hints import with_hints
from fsdp_migrate.source.fails_at_once import refused
from fsdp_migrate.source.parameter_values import WEIGHTS
from fsdp_migrate.source.plain_tensors import is_made_plain
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import last_name, walk_for
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.shown_alone import is_shown_alone
from fsdp_migrate.source.python.tensor_words import SAME
from fsdp_migrate.source.python.unknown_models import is_model, last_word
from fsdp_migrate.source.tensor_parts import inner_of, parts_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source

    IsOne = Callable[[cst.BaseExpression], bool]
    Row = cst.Subscript | cst.Call


PLAIN_ALONE: Final = (
    "this is a DTensor now, of which this rank holds a part: index it, and give it to what takes plain "
    "tensors, as .full_tensor() or .to_local(), and put back what is a DTensor."
)
_WRITTEN: Final = (
    "FSDP1 showed one rank's flat part here, of which an index is an element. Of a DTensor it is a row of "
    "the whole, and what is written to that goes into a copy and is lost, without an error, or is refused: "
    "take full = x.full_tensor() on every rank, write to that, and put back "
    "torch.distributed.tensor.distribute_tensor(full, x.device_mesh, x.placements)."
)
_READ: Final = (
    "FSDP1 showed one rank's flat part here, of which an index is an element. Of a DTensor it is a row of "
    "the whole, which all ranks gather, or is refused: take x.full_tensor(), on every rank, for rows of the "
    "whole, or x.to_local() for this rank's."
)
_IN_TUPLES: Final = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind"})
_STRETCHES: Final = frozenset({"narrow", "select"})
_GIVES_PAIRS: Final = frozenset({"enumerate", "items", "named_parameters", "zip"})
_IN_ORDER: Final = frozenset({"list", "reversed", "sorted", "tqdm", "tuple"})
_SHOWS: Final = frozenset({"get_parameter", "grad", "named_parameters", "parameters", *WEIGHTS})
_TAKEN_APART: Final = frozenset({"full_tensor", "to_local"})
_DEEPEST: Final = 3


def found_rows(values: ParameterValues, named: set[cst.CSTNode]) -> Iterator[Found]:
    """Find where rows are taken or written by an index.

    Args:
        values: The parameters.
        named: What is said already; what a row is taken of is added, and says nothing more.
    """
    source, written = values.source, set[cst.CSTNode]()
    if _SHOWS.isdisjoint(each.attr.value for each in source.attributes):
        return

    def is_weight(node: cst.BaseExpression) -> bool:
        is_its = isinstance(node, cst.Attribute) and is_of_one_weight(values, node)
        return is_its or is_a_weight(values, node)

    for node, owner in indexed(source):
        made = [] if _goes_on(values, node) else list(origins(source, owner, is_weight, values.is_one))
        if not made or source.contexts.is_summoned(node):
            continue
        is_said = not {node, *source.index.ancestors(node)}.isdisjoint(named)
        named.update(made)
        # What one statement writes is made of what it reads: `mask[i] = torch.ones_like(mask[i])`.
        if is_said or source.index.statement(node) in written:
            continue
        named.add(node)
        written.update([source.index.statement(node)] if is_written_to(source.index, node) else [])
        yield _found(values, node)


def _found(values: ParameterValues, node: Row) -> Found:
    source = values.source
    is_written = is_written_to(source.index, node)
    if _is_refused(source, node, is_written=is_written):
        return Found(refused(source, node), node, with_hints(values, node, PLAIN_ALONE), "commented")
    said = with_hints(values, node, _WRITTEN if is_written else _READ)
    is_shown = not is_written and is_shown_alone(source, node)
    waits = is_shown and runs_on_one_rank(source.index, source.models.guards, node)
    return Found("FM334" if is_shown and not waits else "FM423", node, said, "commented")


def indexed(source: Source) -> Iterator[tuple[Row, cst.BaseExpression]]:
    """Yield what is taken by an index, or is a stretch that is written to, and of what: ``x`` of ``x[i]``.

    What is written to comes first.
    """
    nodes = [cst.ensure_type(each, cst.Subscript) for each in source.index.by_kind.get(cst.Subscript, ())]
    for node in sorted(nodes, key=lambda each: not is_written_to(source.index, each)):
        if not isinstance(_first(node), cst.SimpleString):
            yield node, node.value
    for name in _STRETCHES:
        for call in source.index.calls_of_method(name):
            assert isinstance(call, cst.Call)
            if isinstance(call.func, cst.Attribute) and is_written_to(source.index, call):
                yield call, call.func.value


def origins(
    source: Source, node: cst.BaseExpression, is_weight: IsOne, is_one: IsOne, depth: int = 0
) -> Iterator[cst.BaseExpression]:
    """Yield the gradients and parameters that a tensor is, or is made like: ``mask = zeros_like(p.grad)``.

    Args:
        source: Where it stands.
        node: The tensor.
        is_weight: Tells whether an attribute is one.
        is_one: The same of what is made of nothing that is seen here, such as a loop's.
        depth: How many steps led to it.
    """
    if isinstance(node, cst.Call) and last_name(node.func) in _IN_TUPLES:
        return
    if isinstance(node, cst.Attribute) and is_weight(node):
        yield node
        return
    made = list[cst.BaseExpression]()
    for each in _made_of(source, node) if depth <= _DEEPEST else ():
        made += origins(source, each, is_weight, is_one, depth + 1)
    yield from made or ((node,) if is_one(node) and not _is_a_pair(source.index, node) else ())


def rows_of_unknown(source: Source) -> Iterator[tuple[Row, cst.BaseExpression]]:
    """Yield rows of gradients by an index, and the models that these are of, as their names say."""
    if "grad" not in source.code:
        return

    def is_weight(node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Attribute) and node.attr.value == "grad" and _named(node) is not None

    statements = set[cst.CSTNode]()
    for node, owner in indexed(source):
        statement = source.index.statement(node)
        for each in origins(source, owner, is_weight, lambda _: False):
            model = _named(each)
            if model is not None and statement not in statements and not source.contexts.is_summoned(node):
                statements.add(statement)
                yield node, model


def _named(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model that a gradient is of, by its name: ``net`` of ``net.head.weight.grad``."""
    while isinstance(node, (cst.Attribute, cst.Call, cst.Subscript)):
        node = node.func if isinstance(node, cst.Call) else node.value
        if isinstance(node, (cst.Attribute, cst.Name)) and is_model(last_word(node)):
            return node
    return None


def _made_of(source: Source, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a tensor is made of, or a name holds."""
    if isinstance(node, cst.Name):
        return _held(source, node)
    if (inner := inner_of(source, node)) is not None:
        return [inner]
    return list(parts_of(source, node)) if isinstance(node, (cst.BinaryOperation, cst.Call)) else []


def _held(source: Source, name: cst.Name) -> list[cst.BaseExpression]:
    """Return what a name holds, in each branch; nothing if a DTensor is taken apart in one of them."""
    if name not in source.index.scopes:
        return []
    last = last_value(source.index, name)
    bindings = source.index.scopes[name].lookup(name.value) if last is None else ()
    values = [each.value for each in bindings if each.index is None] if last is None else [last]
    found = [each for each in values if isinstance(each, cst.BaseExpression)]
    attributes = (each.attr.value for value in found for each in walk_for(value, cst.Attribute))
    return found if _TAKEN_APART.isdisjoint(attributes) else []


def is_written_to(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether what is taken is written to: ``x[i] = 0``, ``x[i] *= 0``, ``x[i].zero_()``."""
    above = index.parents[node]
    while isinstance(above, cst.Attribute) and above.attr.value in SAME:
        above = index.parents[above]
    if isinstance(above, cst.Attribute):
        is_called = isinstance(index.parents[above], cst.Call)
        return is_called and above.attr.value.endswith("_") and not above.attr.value.startswith("_")
    return isinstance(above, cst.AssignTarget) or (isinstance(above, cst.AugAssign) and above.target is node)


def _is_all(node: Row) -> bool:
    """Tell whether it is the whole, and no row: ``x[...]``, ``x[:]``."""
    if not isinstance(node, cst.Subscript):
        return False
    parts = [each.slice for each in node.slice]
    return all(_is_ellipsis(each) or (isinstance(each, cst.Slice) and _is_open(each)) for each in parts)


def _is_open(part: cst.Slice) -> bool:
    return part.lower is None and part.upper is None and part.step is None


def _goes_on(values: ParameterValues, node: Row) -> bool:
    """Tell whether the whole is read, changed in place, or given another DTensor, which goes on as before."""
    above = values.source.index.parents[node]
    if not _is_all(node) or isinstance(above, cst.AugAssign):
        return False
    assign = values.source.index.parents[above] if isinstance(above, cst.AssignTarget) else None
    return assign is None or (isinstance(assign, cst.Assign) and values.is_one(assign.value))


def _is_refused(source: Source, node: Row, *, is_written: bool) -> bool:
    """Tell whether torch takes no such index, or no such value beside it, in any case."""
    if isinstance(node, cst.Call):
        return False
    if _is_all(node) or any(_is_a_mask(source, each.slice) for each in node.slice):
        return True
    above = source.index.parents[node]
    assign = source.index.parents[above] if isinstance(above, cst.AssignTarget) else None
    if not is_written or not isinstance(assign, cst.Assign):
        return False
    is_number = isinstance(assign.value, (cst.Float, cst.Integer, cst.UnaryOperation))
    is_stretch = any(isinstance(each.slice, cst.Slice) or _is_ellipsis(each.slice) for each in node.slice)
    return is_made_plain(source, assign.value) or (is_number and is_stretch)


def _is_a_mask(source: Source, part: cst.BaseSlice) -> bool:
    """Tell whether an index is a mask, or a list of numbers: ``x[x > 0]``, ``x[[1, 9]]``."""
    value = part.value if isinstance(part, cst.Index) else None
    if isinstance(value, cst.Name) and value in source.index.scopes:
        value = last_value(source.index, value)
    return isinstance(value, (cst.Comparison, cst.List, cst.ListComp)) or (
        isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.BitInvert)
    )


def _is_ellipsis(part: cst.BaseSlice) -> bool:
    return isinstance(part, cst.Index) and isinstance(part.value, cst.Ellipsis)


def _first(node: cst.Subscript) -> cst.BaseExpression | None:
    first = node.slice[0].slice
    return first.value if isinstance(first, cst.Index) else None


def _is_a_pair(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether a name is all that a loop gives of pairs: ``for pair in model.named_parameters()``."""
    if not isinstance(node, cst.Name):
        return False
    loops = [loop for loop in loops_around(index, node) if binds(loop, node.value)]
    return any(
        isinstance(loop.target, cst.Name) and isinstance(loop.iter, cst.Call) and _gives_pairs(loop.iter)
        for loop in loops
    )


def _gives_pairs(call: cst.Call) -> bool:
    """Tell whether what a loop goes through gives tuples, also in another order or as a list."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else last_name(call.func)
    if name in _GIVES_PAIRS:
        return True
    given = [each.value for each in call.args[:1] if isinstance(each.value, cst.Call)]
    return name in _IN_ORDER and any(map(_gives_pairs, given))
