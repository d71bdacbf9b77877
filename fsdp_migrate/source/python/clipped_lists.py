"""Lists of parameters that are clipped, and no ``model.parameters()``: an optimizer's, or of others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, stands_for, values_set
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.python.unknown_models import is_unknown, last_word


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_GROUPS = "param_groups"
_CLIPPER = re.compile(r"(?i)grad_?clip|clip\w*(?:grad|norm)(?!.*value)|clipper|clip_fn")
_NORMS = frozenset({"clip_grad_norm", "clip_grad_norm_"})
_DEEPEST = 4


def are_unknown(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether nothing shows whose parameters a list has: an optimizer's, or of others."""
    optimizer = whose_groups(source, given)
    if optimizer is not None:
        return text_of(optimizer) == "self" or is_unknown(source, optimizer)
    if not isinstance(given, (cst.Name, cst.Attribute)) or not is_unknown(source, given):
        return False
    if isinstance(given, cst.Attribute) and last_word(given) == _GROUPS:
        return False
    held = list(stands_for(source.index, source.guards, given)) if isinstance(given, cst.Name) else []
    models = [model_of(source.index, each) for each in held]
    return not any(each is not None and not is_unknown(source, each) for each in models)


def whose_groups(source: Source, given: cst.BaseExpression, depth: int = 0) -> cst.BaseExpression | None:
    """Return the optimizer whose groups a list is made of: ``[p for g in opt.param_groups for p in ...]``."""
    for node in walk_for(given, cst.Attribute):
        if node.attr.value == _GROUPS:
            return node.value
    for name in walk_for(given, cst.Name) if depth < _DEEPEST else ():
        for value in _comes_of(source, name):
            found = whose_groups(source, value, depth + 1)
            if found is not None:
                return found
    return None


def _comes_of(source: Source, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield the value of a name, or what the loop goes through that it is the target of."""
    if name not in source.index.scopes:
        return
    value = last_value(source.index, name)
    if value is not None:
        yield value
    yield from (loop.iter for loop in loops_around(source.index, name) if binds(loop, name.value))


def values_of(source: Source, given: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what a name is bound to, also as a part of a tuple, with the name."""
    if isinstance(given, cst.Name) and given in source.index.scopes:
        for binding in source.index.scopes[given].lookup(given.value):
            if binding.value is not None:
                yield given.value, binding.value


def given_to_clipper(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return the parameters that something is given which clips, as its name says: ``self.grad_clipper(xs)``.

    It is made elsewhere, by a config perhaps: what a function of the source does is seen there.
    """
    func, given = call.func, call.args[0].value if call.args and not call.args[0].star else None
    if given is None or not _CLIPPER.search(last_name(func)):
        return None
    if isinstance(func, cst.Attribute):
        is_held = bool(values_set(source.index, func))
    else:
        bindings = source.index.scopes[func].lookup(text_of(func)) if func in source.index.scopes else []
        is_held = bool(bindings) and all(each.kind == "param" or each.value is not None for each in bindings)
    is_list = whose_groups(source, given) is not None or model_of(source.index, given) is not None
    return given if is_held and is_list else None


def clipped(call: cst.Call) -> cst.BaseExpression | None:
    """Return what a function that clips is given, ``clip_grad_norm_(params, 1.0)``; none of a method's."""
    *before, name = (dotted(call.func) or "").split(".")
    is_function = not before or before[-1] in {"clip_grad", "utils"}
    is_given = bool(call.args) and not call.args[0].star
    return call.args[0].value if name in _NORMS and is_function and is_given else None
