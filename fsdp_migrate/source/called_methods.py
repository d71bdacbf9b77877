"""Methods of a model's own that are called on it, and may run it: all but those that are known not to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.catalog import CLASS_FUNCTIONS
from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


# Of nn.Module and ModuleList, as far as their names do not begin as those below do.
_MODULES: Final = frozenset(
    {
        *("apply", "bfloat16", "buffers", "children", "compile", "cpu", "cuda", "double", "eval", "float"),
        *("half", "ipu", "modules", "mtia", "parameters", "share_memory", "train", "type", "xpu"),
        *("check_is_root", "clip_grad_norm_", "extra_repr", "no_sync"),
        *("append", "clear", "extend", "insert"),
    }
)
# What reads, sets or writes, as its first word says.
_FIRST: Final = re.compile(
    r"_*(?:add|attach|cast|clip|clone|config|copy|count|del|delete|detach|disable|dump|enable|export|find|freeze|from"
    r"|fuse|get|gradient|has|init|initialize|is|iter|items|keys|list|load|log|merge|named|num|on|pop|post|prepare|print"
    r"|prune|push|quantize|register|remove|rename|report|requires|reset|resize|restore|save|set|setup|share|state"
    r"|store|summarize|summary|sync|tie|to|trainable|unfreeze|unload|unmerge|unset|untie|update|upload|values"
    r"|weight|weights|zero)(?:_|$)"
)
_COMPUTES: Final = re.compile(
    r"_*(?:get_\w*(?:feature|hidden|logit|loss|output(?!_embed)|prob|score)|log_?(?:likelihood|prob))"
)
_UNWRAPS: Final = re.compile(r"unwrap", re.IGNORECASE)


def methods_that_may_run(source: Source, body: cst.CSTNode, model: str) -> Iterator[str]:
    """Yield the methods of its own that a block calls on a model, or on what it was unwrapped to.

    One that this source shows, and that calls nothing of its object, does not run it.
    """
    for call in walk_for(body, cst.Call):
        func = call.func
        if isinstance(func, cst.Name) and is_the_model(source, func, model):
            yield "forward"  # `unwrapped(x)`
        if not isinstance(func, cst.Attribute) or not is_own(func.attr.value):
            continue
        is_followed = text_of(func.value) in {"self", "cls"}
        if (
            not is_followed
            and is_the_model(source, func.value, model)
            and not _reads_alone(source, func.attr.value)
        ):
            yield func.attr.value


def is_own(name: str) -> bool:
    """Tell whether a method is neither one of nn.Module's, nor known by its name to run nothing.

    Example:
        >>> [is_own(name) for name in ("generate_batch", "named_parameters", "save", "get_text_features")]
        [True, False, False, True]
    """
    if name in _MODULES | CLASS_FUNCTIONS or name.startswith("__"):
        return False
    return _FIRST.match(name) is None or _COMPUTES.match(name) is not None


def is_the_model(source: Source, node: cst.BaseExpression, model: str) -> bool:
    """Tell whether an expression is a model of this name, by another name too: ``inner = model.module``."""
    if _is_the_model(node, model):
        return True
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    values = [each.value or _entered(source, each.node) for each in source.index.bindings_of(node)]
    return any(value is not None and _is_the_model(value, model) for value in values)


def _entered(source: Source, name: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the context that gives a name: ``with unwrapped(model) as inner``."""
    item = source.index.parents.get(source.index.parents.get(name, name))
    return item.item if isinstance(item, cst.WithItem) else None


def _is_the_model(node: cst.BaseExpression, model: str) -> bool:
    """Tell whether an expression is the model, or what a function unwraps: ``unwrap_model(model)``.

    Or what may be it: ``model.module if wrapped else model``, ``getattr(model, "module", model)``.
    """
    while isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED:
        node = node.value
    if isinstance(node, cst.IfExp):
        return _is_the_model(node.body, model) or _is_the_model(node.orelse, model)
    if isinstance(node, cst.Call):
        if text_of(node.func) == "getattr" and len(node.args) > 1:
            is_wrapped = text_of(node.args[1].value).strip("'\"") in catalog.WRAPPED
            return is_wrapped and _is_the_model(node.args[0].value, model)
        return bool(node.args) and _UNWRAPS.search(text_of(node.func)) is not None
    return bool(model) and text_of(node) == model


def _reads_alone(source: Source, name: str) -> bool:
    """Tell whether every method of this name here calls nothing of its object."""
    made = (cst.ensure_type(node, cst.FunctionDef) for node in source.index.by_kind.get(cst.FunctionDef, ()))
    every = [node for node in made if node.name.value == name]
    return bool(every) and not any(
        text_of(call.func).split(".")[0] in {"self", "super()"}
        for node in every
        for call in walk_for(node.body, cst.Call)
    )
