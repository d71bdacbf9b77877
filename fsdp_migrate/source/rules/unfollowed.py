"""What is done with a model or an optimizer of which nothing shows whether it is the sharded one.

Nothing is done to these places. They are named, so that nobody has to search for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.mentions import find_left
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "unfollowed"
CODES = ("FM450",)

_STATE = (
    "the sharded model's state holds one rank's part of each tensor (DTensor). For whole ones every rank "
    "takes torch's get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True))."
)
_LOAD = "the sharded model takes no whole tensors: load_model_state_dict of fsdp_migrate.runtime does."
_PRETRAINED = (
    "the sharded model would save one rank's part of each tensor: every rank takes its whole state first, "
    "and one gives it as state_dict=."
)
_OPTIMIZER = (
    "the state of a sharded model's optimizer is one rank's part, keyed by numbers: "
    "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime gives the whole."
)
_OPTIMIZER_LOAD = (
    "a sharded model's optimizer takes no whole tensors: first optim_state_dict_to_load(model, optimizer, "
    "state) of fsdp_migrate.runtime."
)
_COPY = "a sharded model cannot be copied: copy it before it is sharded."
_SAID: Final = {
    "clip_grad_norm_": "the sharded model has none: fsdp_migrate.runtime.clip_grad_norm_(model, max_norm).",
    "load_state_dict": _LOAD,
    "no_sync": "the sharded model has none: fsdp_migrate.runtime.no_sync(model).",
    "save_pretrained": _PRETRAINED,
    "state_dict": _STATE,
}
_OF_OPTIMIZERS: Final = {"load_state_dict": _OPTIMIZER_LOAD, "state_dict": _OPTIMIZER}
_OF_FUNCTIONS: Final = {
    "clip_grad_norm_": "of the sharded model the norm is that of the whole gradient; FSDP1's was one rank's.",
    "deepcopy": _COPY,
    "get_peft_model_state_dict": _PRETRAINED,
}

_MODEL: Final = re.compile(
    r"(?:^|_)(?:actor|critic|controlnet|dit|encoder|decoder|ema|generator|discriminator|llm|model|module|net"
    r"|network|policy|student|teacher|transformer|unet|vae|vit)(?:_\w+)?$"
)
_OPTIMIZER_NAME: Final = re.compile(r"optim|(?:^|_)opt$")
_NO_MODEL: Final = re.compile(r"args|cfg|class|config|file|id|kwargs|name|path|type|url|str$")
# What makes a model anew, which nobody has sharded yet.
_MAKES: Final = re.compile(r"^[A-Z]|from_|create|build|load|copy|make|init|get_(?:\w+_)?model")
_IS_MODULE: Final = re.compile(r"(?<!Lightning)(?:Module|Model|Mixin|PreTrained\w*)$")
_MAX_DEPTH: Final = 4
_MAY_FIND: Final = re.compile(
    r"(?i)(?:actor|critic|controlnet|dit|coder|ema|tor|llm|model|module|net|network|policy|student|teacher|former|vae"
    r"|vit|optim|optimizer|opt)(?:_\w+)?(?:['\"]\])?\s*"
    r"\.(?:clip_grad_norm_|load_state_dict|no_sync|save_pretrained|state_dict)\("
    r"|\bclip_grad_norm_\(|\bdeepcopy\(|\bget_peft_model_state_dict\("
)


def may_find(text: str) -> bool:
    """Tell whether a source may do any of this with a model.

    Example:
        >>> may_find("net.load_state_dict(x)"), may_find("scheduler.load_state_dict(x)")
        (True, False)
    """
    return _MAY_FIND.search(text) is not None


def find(source: Source, found: Iterable[tuple[str, Found]]) -> Iterator[Found]:
    """Find what the other rules have said nothing of, in files that a sharded model may come to."""
    if not source.links.is_near:
        return
    said = {source.index.statement(each.node) for _, each in found}
    commented = {line for line, *_ in find_left(source.code)}
    for call in source.calls:
        asked = _asked(source, call)
        if asked is None or not _is_unknown(source, asked[0]):
            continue
        statement = source.index.statement(call)
        if statement not in said and source.position(statement)[0] not in commented:
            said.add(statement)
            yield Found("FM450", call, asked[1], "unclear")


def _asked(source: Source, call: cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """Return the model or optimizer that a call does something with, and what to know of it."""
    func = call.func
    name = func.attr.value if isinstance(func, cst.Attribute) else (dotted(func) or "")
    if isinstance(func, cst.Attribute) and name in _SAID and not source.index.qualified(func):
        last = _last(func.value)
        if name in _OF_OPTIMIZERS and _OPTIMIZER_NAME.search(last):
            return func.value, _OF_OPTIMIZERS[name]
        is_whole = name == "save_pretrained" and _is_given(call, "state_dict")
        is_model = _is_model(last) and not is_whole and not is_no_model(source.index, func.value)
        return (func.value, _SAID[name]) if is_model else None
    given = call.args[0].value if name in _OF_FUNCTIONS and call.args else None
    if name == "clip_grad_norm_":
        given = _whose_parameters(given)
    return (given, _OF_FUNCTIONS[name]) if given is not None and _is_model(_last(given)) else None


def _is_given(call: cst.Call, name: str) -> bool:
    return any(arg.keyword is not None and arg.keyword.value == name for arg in call.args)


def _whose_parameters(given: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Return the model of ``model.parameters()``."""
    if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Attribute):
        return None
    return given.func.value if given.func.attr.value == "parameters" else None


def _is_model(name: str) -> bool:
    return _MODEL.search(name) is not None and _NO_MODEL.search(name) is None


def _last(node: cst.BaseExpression) -> str:
    """Return the last word of what an expression is called: ``model`` of ``kwargs["model"]``."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        inner = node.slice[0].slice
        is_text = isinstance(inner, cst.Index) and isinstance(inner.value, cst.SimpleString)
        return text_of(node.slice[0]).strip("'\"").lower() if is_text else ""
    return (dotted(node) or "").split(".")[-1].lower()


def _is_unknown(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether a model comes from somewhere that is not seen: a parameter, or an object's attribute."""
    if depth > _MAX_DEPTH or _is_known(source, node):
        return False
    if source.index.qualified(node):
        return False  # a module, or a thing of one
    if isinstance(node, cst.Subscript):
        return True
    if isinstance(node, cst.Name):
        return _is_unknown_name(source, node, depth)
    if not isinstance(node, cst.Attribute):
        return False
    if text_of(node.value) in {"self", "cls"}:
        return _is_unknown_attribute(source, node, depth)
    # Of a model that is made here the parts are plain as well.
    return _is_unknown(source, node.value, depth + 1) if _is_model(_last(node.value)) else True


def _is_known(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether the source shows what a model is; where it speaks of no FSDP only checks may show it."""
    if not source.links.is_linked and not source.uses_fsdp1:
        return source.guards.is_of_other_wrapper(node) or source.guards.is_without_fsdp(node)
    return bool(source.models.kinds(node)) or source.models.is_other_branch(node)


def _is_unknown_attribute(source: Source, node: cst.Attribute, depth: int) -> bool:
    """Tell so of ``self.model``: what a module has is a part of a model, and as that model is."""
    owner = source.index.class_of(node)
    if owner is None or any(_IS_MODULE.search(dotted(base.value) or "") for base in owner.bases):
        return False
    values = [*values_set(source.index, node), *_values_taken_apart(owner, text_of(node))]
    return all(_comes_from_elsewhere(source, each, depth) for each in values if text_of(each) != "None")


def _values_taken_apart(owner: cst.ClassDef, text: str) -> Iterator[cst.BaseExpression]:
    """Yield what ``self.model, self.tokenizer = load(path)`` takes apart in a class."""
    for assign in walk_for(owner, cst.Assign):
        targets = [each.target for each in assign.targets if isinstance(each.target, (cst.List, cst.Tuple))]
        if any(text_of(part.value) == text for target in targets for part in target.elements):
            yield assign.value


def _is_unknown_name(source: Source, node: cst.Name, depth: int) -> bool:
    bindings = source.index.scopes[node].lookup(node.value) if node in source.index.scopes else []
    given = [each for each in bindings if each.value is None or text_of(each.value) != "None"]
    return bool(given) and all(
        each.kind in {"param", "other"}
        or (each.value is not None and _comes_from_elsewhere(source, each.value, depth))
        for each in given
    )


def _comes_from_elsewhere(source: Source, value: cst.BaseExpression, depth: int) -> bool:
    """Tell whether a value is made by an object that is not seen, or is unknown itself."""
    if not isinstance(value, cst.Call):
        return isinstance(value, (cst.Name, cst.Attribute, cst.Subscript)) and _is_unknown(
            source, value, depth + 1
        )
    name = (dotted(value.func) or "").split(".")[-1]
    if not name:  # `make(x).eval()`
        inner = value.func.value if isinstance(value.func, cst.Attribute) else None
        return inner is not None and _comes_from_elsewhere(source, inner, depth)
    is_seen = isinstance(value.func, cst.Name) or bool(source.index.qualified(value.func))
    return not is_seen and not _MAKES.search(name)
