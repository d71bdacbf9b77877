"""A model's state methods that are kept or handed on, or asked for by name: ``get = model.state_dict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.framework_words import mixed, state
from fsdp_migrate.source.method_calls import is_seen_plain
from fsdp_migrate.source.python.by_name import read_by_name
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import last_name
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_STATES: Final = frozenset({"load_state_dict", "state_dict"})
_LATER: Final = "where this is called, the state is sharded now. Have what calls it take {}."
# They ask what it is, and call nothing.
_LOOKS: Final = frozenset({"callable", "hasattr", "id", "isfunction", "ismethod", "signature", "type"})


def states_by_name(source: Source) -> Iterator[Found]:
    """Find where the method by which a sharded model gives or takes its state is not called at once."""
    for node in source.attributes:
        if node.attr.value in _STATES and not _is_called_or_set(source, node):
            yield from _of(source, node, node.value, node.attr.value)
    for call in source.calls:
        named = read_by_name(call)
        if named is not None and named.name in _STATES and isinstance(named.owner, cst.BaseExpression):
            yield from () if _is_looked_at(source, call) else _of(source, call, named.owner, named.name)


def _of(source: Source, node: cst.BaseExpression, model: cst.BaseExpression, name: str) -> Iterator[Found]:
    certainty = source.models.certainty(model)
    if certainty is None or is_no_model(source.index, model) or source.contexts.is_summoned(node):
        return
    if is_seen_plain(source, model):
        return
    said = _LATER.format(state(source, model, is_load=name == "load_state_dict"))
    if certainty == "certain":
        yield Found("FM308", node, said, "commented")
    else:
        yield Found("FM333", node, f"{mixed(source, model)}{said}", "commented")


def _is_called_or_set(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is called at once, which others speak of; or set, or asked for something itself."""
    above = source.index.parents[node]
    if isinstance(above, cst.Call) and above.func is node:
        return True
    return isinstance(above, (cst.AssignTarget, cst.Attribute, cst.Del)) or _is_looked_at(source, node)


def _is_looked_at(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a method is only looked at, and called by nobody: ``callable(model.state_dict)``."""
    above = source.index.parents[node]
    if isinstance(above, (cst.Attribute, cst.Comparison, cst.Expr)):
        return True
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and last_name(call.func) in _LOOKS
