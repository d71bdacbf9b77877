"""``copy.deepcopy`` of what holds a sharded model's parameters.

FSDP1's were plain tensors. FSDP2's gradients share memory that torch cannot copy, so that it raises while
there are some; before the first backward, and of ``.data``, it works.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.asked_as_models import asked_as_models, is_model
from fsdp_migrate.source.python.held import WRAPS, has_model
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of
from fsdp_migrate.source.python.unknown_models import last_word


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPCOPY: Final = "copy.deepcopy"
# A class that says what of its objects is copied or pickled may leave the model out.
_LEAVES_OUT: Final = re.compile(r"\bdef __(?:deepcopy|getstate|reduce|reduce_ex)__\(")
_VALUES: Final = frozenset({"clone", "cpu", "data", "detach"})
_PARTS: Final = re.compile(
    r"(^|_)(backbone|blocks?|critic|decoder|embeddings?|encoder|head|layers?|policy|transformer|unet)(_\w+)?$"
)


def copies(source: Source) -> Iterator[tuple[cst.Call, bool]]:
    """Yield copies of parts of a model, and of parameters and optimizers where gradients may be.

    With each, whether it is a part.
    """
    calls = [call for call in source.calls if _DEEPCOPY in source.index.qualified(call.func) and call.args]
    values = ParameterValues(source) if calls else None
    for call in calls:
        given = call.args[0].value
        if values is None or call.args[0].star or source.models.certainty(given) is not None:
            continue
        if is_part(source, given) or holds_one(source, given):
            yield call, True
            continue
        holds = values.is_one(given) or values.is_many(given) or _is_its_optimizer(source, given)
        if holds and not _is_of_values(given) and not _is_without_gradients(source, call):
            yield call, False


def _is_of_values(node: cst.BaseExpression) -> bool:
    """Tell whether gradients are left out: ``p.data``, ``[p.detach() for p in ...]``."""
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
        return _is_of_values(node.elt)
    if isinstance(node, cst.DictComp):
        return _is_of_values(node.value)
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Attribute) and node.func.attr.value in _VALUES
    return isinstance(node, cst.Attribute) and node.attr.value in _VALUES


def is_part(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is a part of a sharded model that has parameters, as its name says."""
    last = last_word(node)
    is_named = _PARTS.search(last) or is_model(last, asked_as_models(source.index, or_called=False))
    part: cst.BaseExpression | None = node if is_named else None
    while part is not None:
        part = source.models.sharded_with(part)
        if part is not None and source.models.certainty(part) is not None:
            return True
    return False


def holds_one(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an object has a sharded model as an attribute: ``Shell(FSDP(net))``, or ``self``."""
    if _LEAVES_OUT.search(source.code):
        return False
    owner = source.index.class_of(node) if dotted(node) == "self" else None
    if owner is not None:
        facts = source.models.facts.items()
        return any(where is owner and has_model(kinds) for (where, _), kinds in facts)
    kinds = source.models.kinds(node)
    return WRAPS in kinds or has_model({kind for kind in kinds if kind.startswith(".")})


def _is_its_optimizer(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is an optimizer that is made here of a sharded model's parameters, or its groups."""
    optimizer = node.value if isinstance(node, cst.Attribute) and node.attr.value == "param_groups" else node
    text = text_of(optimizer)
    for assign in source.assignments:
        made = assign.value
        if isinstance(made, cst.Call) and any(text_of(each.target) == text for each in assign.targets):
            name = last_name(made.func)
            if name[:1].isupper() and any(source.models.is_parameters(arg.value) for arg in made.args):
                return True
    return False


def _is_without_gradients(source: Source, call: cst.Call) -> bool:
    """Tell whether a function has sharded the model, or cleared its gradients, and run no backward since.

    A loop around goes on with what its last round left.
    """
    index, function = source.index, source.index.function(call)
    if any(isinstance(above, (cst.For, cst.While)) for above in index.ancestors(call)):
        return False
    clear = False
    for other in source.calls:
        if index.function(other) is not function or index.order[other] >= index.order[call]:
            continue
        # Of `model(x).sum().backward()` too, whose beginning is no name.
        named = other.func.attr if isinstance(other.func, cst.Attribute) else other.func
        name = named.value if isinstance(named, cst.Name) else ""
        clear = name == "zero_grad" or _shards(source, other) or (clear and "backward" not in name)
    return clear


def _shards(source: Source, call: cst.Call) -> bool:
    given = (arg.value for arg in call.args if not arg.star)
    is_made = any(kind.endswith("fsdp") for kind in source.models.kinds(call))
    return is_made and all(source.models.certainty(each) is None for each in given)
