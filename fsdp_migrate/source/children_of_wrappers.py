"""Questions for the children of a sharded model: FSDP1's wrapper had one, the module that it wrapped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.framework_words import mixed
from fsdp_migrate.source.method_calls import is_seen_plain, is_wrapped_itself
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_ASKS: Final = frozenset({"children", "named_children"})
_MEANT: Final = (
    "FSDP1's wrapper had one child, the module that it wrapped; FSDP2 wraps nothing, and these are the "
    "model's own parts: see which are meant."
)
_UNWRAPS: Final = re.compile(r"\bmodule\b|_fsdp_wrapped_module|unwrap|getattr", re.IGNORECASE)
# What comes to all that is in a module comes to the same by one child and by several.
_OF_ALL: Final = frozenset(
    {
        *("apply", "bfloat16", "buffers", "cpu", "cuda", "double", "eval", "float", "half", "modules"),
        *("parameters", "requires_grad_", "to", "train", "zero_grad"),
    }
)


def children_of_wrappers(source: Source) -> Iterator[Found]:
    """Find where FSDP1's wrapper is asked for its children, if something depends on how many there are."""
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _ASKS or call.args:
            continue
        if _is_wrapper(source, func.value) and not _is_of_all(source, call) and not _goes_down(source, call):
            is_sure = source.models.certainty(func.value) == "certain"
            said = _MEANT if is_sure else f"{mixed(source, func.value)}{_MEANT}"
            yield Found("FM335", call, said, "commented")


def _is_wrapper(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is the wrapper itself, as this source, or Accelerate, has made it."""
    models = source.models
    if models.certainty(model) is None or models.sharded_by(model) not in {"", "accelerate"}:
        return False
    if models.key_of(model) in models.wholes and not is_wrapped_itself(source, model):
        return False  # parts of it are wrapped, and it is its own class's
    return not (is_seen_plain(source, model) or models.is_inner(model) or was_unwrapped(source, model))


def was_unwrapped(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether an expression, or what its name is given anywhere, says that a wrapper was taken off."""
    given: list[cst.BaseExpression | None] = [model]
    if isinstance(model, cst.Name):
        given += [each.value for each in source.index.bindings_of(model)]
    elif isinstance(model, cst.Attribute):
        given += values_set(source.index, model)
    return any(each is not None and _UNWRAPS.search(text_of(each)) for each in given)


def _is_of_all(source: Source, call: cst.Call) -> bool:
    """Tell whether a loop does to each child what comes to all that is in it: ``child.train()``."""
    loop = source.index.parents[call]
    if not isinstance(loop, (cst.For, cst.CompFor)) or loop.iter is not call:
        return False
    targets = [each.value for each in walk_for(loop.target, cst.Name)]
    whole = loop.body if isinstance(loop, cst.For) else source.index.parents[loop]
    uses = [each for each in walk_for(whole, cst.Name) if each.value in targets]
    uses = [each for each in uses if each not in set(walk_for(loop.target, cst.Name))]
    return bool(uses) and all(_asks_of_all(source, each, targets[-1]) for each in uses)


def _asks_of_all(source: Source, name: cst.Name, child: str) -> bool:
    above = source.index.parents[name]
    is_asked = isinstance(above, cst.Attribute) and above.value is name and name.value == child
    return is_asked and isinstance(above, cst.Attribute) and above.attr.value in _OF_ALL


def _goes_down(source: Source, call: cst.Call) -> bool:
    """Tell whether a function calls itself, and so comes to all that is in a module."""
    function = source.index.function(call)
    return function is not None and any(
        text_of(each.func).split(".")[-1] == function.name.value for each in walk_for(function.body, cst.Call)
    )
