"""Optimizers that are made in sight, of parameters that may be the sharded model's or another's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.clipped_lists import are_unknown
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.python.optimizers import is_optimizer, stepped
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.python.unknown_models import is_model, is_unknown, last_word


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_PARAMETERS: Final = re.compile(r"param|group|weights")
_DEEPEST: Final = 3


def is_made_of_unknown(source: Source, optimizer: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an optimizer is made of such parameters alone, or of another that is.

    ``self.optimizer = optim_class(params, lr=lr)``, where ``params`` is an argument, tells no more than an
    optimizer that is one.
    """
    text = text_of(optimizer)
    values = [
        each for each in _values(source, optimizer) if each is None or text_of(each) not in {"None", text}
    ]
    # What wraps it is as it was: `self.optimizer = Wrapper(self.optimizer)`.
    inner = [each for each in values if not _is_given(each, text)]
    return bool(inner) and all(each is None or _is_of_unknown(source, each, depth) for each in inner)


def _values(source: Source, node: cst.BaseExpression) -> list[cst.BaseExpression | None]:
    """Return what an optimizer's name is bound to; None where it is an argument, or a part of something."""
    if isinstance(node, cst.Attribute):
        return [*values_set(source.index, node)]
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return []
    bindings = source.index.scopes[node].lookup(node.value)
    return [each.value if each.index is None else None for each in bindings]


def _is_given(value: cst.BaseExpression | None, text: str) -> bool:
    return isinstance(value, cst.Call) and text in {text_of(arg.value) for arg in value.args}


def _is_of_unknown(source: Source, value: cst.BaseExpression, depth: int) -> bool:
    """Tell whether what an optimizer is made of are parameters, a model or an optimizer that others give."""
    given = next(iter(stepped(value)), None) if isinstance(value, cst.Call) else value
    if given is None or depth > _DEEPEST:
        return False
    if is_optimizer(last_word(given)):
        return is_unknown(source, given) or is_made_of_unknown(source, given, depth + 1)
    model = given if is_model(last_word(given)) else model_of(source.index, given)
    if model is not None:
        return is_unknown(source, model)
    named = [given] if isinstance(given, (cst.Attribute, cst.Name)) else [*walk_for(given, cst.Name)]
    return any(_PARAMETERS.search(last_word(each)) and are_unknown(source, each) for each in named)
