"""Recurrent layers of models that Accelerate's FSDP2 shards: on CUDA they keep the weights of the first step.

``prepare_fully_shard`` leaves their weights in place; ``doctor`` knows the fault as recurrent-layers-on-cuda.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, word_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "recurrent-layers"
CODES = ("FM343",)

_LAYERS = frozenset(
    f"torch.nn.{place}{name}" for place in ("", "modules.rnn.") for name in ("GRU", "LSTM", "RNN")
)
_MEANT = (
    "under Accelerate's FSDP2 this layer computes on CUDA with the weights of the first step for good:"
    " torch moves them. Before the model is prepared, set `layer.flatten_parameters = lambda: None` on it."
)
_OF_ANY = (
    "where this makes a recurrent layer, it computes on CUDA under Accelerate's FSDP2 with the weights of the"
    " first step for good: torch moves them. Before the model is prepared, set"
    " `layer.flatten_parameters = lambda: None` on it."
)
_OTHERS = re.compile(r"act|conv|drop|loss|linear|norm|pad|pool", re.IGNORECASE)
# Where a class is named and no layer made of it.
_ASKS = frozenset({"hasattr", "isinstance", "issubclass", "type"})
_HOLDERS = (
    cst.Arg,
    cst.Assign,
    cst.AnnAssign,
    cst.DictElement,
    cst.Element,
    cst.IfExp,
    cst.Param,
    cst.Return,
)


def find(source: Source) -> Iterator[Found]:
    """Find where recurrent layers are made, and classes of such, in projects that Accelerate shards.

    What holds these classes, to make one of them by its name, is told of where it does.
    """
    if not source.links.has_recurrent_layers:
        return
    for call in source.calls:
        if _LAYERS & source.index.qualified(call.func):
            yield Found("FM343", call, _MEANT, "commented")
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        if any(_LAYERS & source.index.qualified(base.value) for base in owner.bases):
            yield Found("FM343", owner, _MEANT, "commented")
    yield from (Found("FM343", node, _OF_ANY, "commented") for node in _kept_classes(source))
    for call in source.calls:
        is_sized = len(call.args) > 1 or any(arg.star for arg in call.args)  # no activation, and no norm
        if is_sized and isinstance(call.func, cst.Call) and _is_picked(source, call.func):
            yield Found("FM343", call, _OF_ANY, "commented")


def _kept_classes(source: Source) -> Iterator[cst.CSTNode]:
    """Yield the classes that something holds, which makes layers of them: ``{"lstm": nn.LSTM}``."""
    index = source.index
    called = {text_of(call.func) for call in source.calls if _LAYERS & index.qualified(call.func)}
    seen: set[cst.CSTNode] = set()
    for node in (each for kind in (cst.Attribute, cst.Name) for each in index.by_kind.get(kind, ())):
        above = index.parents[node]
        if not isinstance(above, _HOLDERS) or not _is_value(source, node, above):
            continue
        line = index.statement(node)
        if line in seen or not _LAYERS & index.qualified(node) or _is_another_name(above, called):
            continue
        seen.add(line)
        yield node


def _is_value(source: Source, node: cst.CSTNode, above: cst.CSTNode) -> bool:
    """Tell whether a name stands for what is held, or given: not in an annotation, nor to ask for it."""
    if isinstance(above, (cst.Arg, cst.Element)):
        holder = source.index.parents[above]
        call = (
            source.index.parents[source.index.parents[holder]] if isinstance(above, cst.Element) else holder
        )
        is_asked = any(isinstance(each, cst.Call) and dotted(each.func) in _ASKS for each in (call, holder))
        return not is_asked and not isinstance(holder, (cst.ClassDef, cst.Decorator))
    if isinstance(above, cst.Param):
        return above.default is node
    if isinstance(above, cst.IfExp):
        return above.test is not node
    return isinstance(above, (cst.Return, cst.DictElement)) or getattr(above, "value", None) is node


def _is_another_name(above: cst.CSTNode, called: set[str]) -> bool:
    """Tell whether a name is given the class that is called by it here: that call is told of."""
    return isinstance(above, cst.Assign) and any(text_of(each.target) in called for each in above.targets)


def _is_picked(source: Source, call: cst.Call) -> bool:
    """Tell whether a call picks a class of ``torch.nn`` by a name that is known only when it runs."""
    given = [arg.value for arg in call.args]
    if dotted(call.func) != "getattr" or len(given) < 2 or "torch.nn" not in source.index.qualified(given[0]):
        return False
    if _OTHERS.search(text_of(given[1])):
        return False
    return not isinstance(given[1], cst.SimpleString) or word_of(given[1]) in {"GRU", "LSTM", "RNN"}
