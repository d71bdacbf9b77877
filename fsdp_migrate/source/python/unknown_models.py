"""Models of which a source does not show where they are made: what may be the sharded one, or another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import asks_for_fsdp, fsdp_said
from fsdp_migrate.source.python.accelerators import method_that_shards
from fsdp_migrate.source.python.evidence import imports_fsdp1
from fsdp_migrate.source.python.fabric_models import is_set_up_plain, set_up
from fsdp_migrate.source.python.held import WRAPS
from fsdp_migrate.source.python.last_values import last_value, stands_for, values_set
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for, word_of
from fsdp_migrate.source.python.wrappers import DDP, FSDP2


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_MODEL: Final = re.compile(
    r"(?:^|_)(?:actor|critic|controlnet|dit|encoder|decoder|ema|generator|discriminator|llm|model|module|net"
    r"|network|policy|student|teacher|transformer|unet|vae|vit)(?:_\w+)?$"
)
_NO_MODEL: Final = re.compile(
    r"args|cfg|class(?!ifi)|config|(?<!pro)file|(?:^|_|model)ids?(?:_|$)|kwargs|name|path|(?<!proto)type|url|str$"
    r"|_(?:device|dim|len|length|lr|size|tokens|version)$"
)
# What makes a model anew, which nobody has sharded yet.
_MAKES: Final = re.compile(r"^[A-Z]|from_|create|build|load|copy|make|init|get_(?:\w+_)?model")
_SHARDS: Final = re.compile(r"^(?:prepare|setup)|shard|wrap|parallel")
_IS_MODULE: Final = re.compile(r"(?<!Lightning)(?:Module|Model|Mixin|PreTrained\w*)$")
_LISTS: Final = frozenset({"list", "tuple"})
_MAX_DEPTH: Final = 4


def is_model(name: str) -> bool:
    """Tell whether a name is one that models have.

    Example:
        >>> [is_model(each) for each in ("ref_policy", "video_model", "model_config", "llm_max_length")]
        [True, True, False, False]
    """
    return _MODEL.search(name) is not None and _NO_MODEL.search(name) is None


def makes_anew(name: str) -> bool:
    """Tell whether a function of that name makes a model that nobody has sharded yet.

    Example:
        >>> makes_anew("from_pretrained"), makes_anew("prepare")
        (True, False)
    """
    return _MAKES.search(name) is not None


def last_word(node: cst.BaseExpression) -> str:
    """Return the last word of what an expression is called: ``model`` of ``kwargs["model"]``."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        inner = node.slice[0].slice
        is_text = isinstance(inner, cst.Index) and isinstance(inner.value, cst.SimpleString)
        return word_of(node.slice[0]).lower() if is_text else ""
    return last_name(node).lower()


def is_unknown(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether a model comes from somewhere that is not seen: a parameter, or an object's attribute."""
    if depth > _MAX_DEPTH or _is_known(source, node):
        return False
    if source.models.frameworks.may_be_trained(node):
        return True
    if source.index.qualified(node):
        return False  # a module, or a thing of one
    if isinstance(node, cst.Subscript):
        return True
    if isinstance(node, cst.Name):
        return _is_unknown_name(source, node, depth)
    if not isinstance(node, cst.Attribute):
        return False
    if _is_inside_ddp(source, node):
        return False
    if text_of(node.value) in {"self", "cls"}:
        return _is_unknown_attribute(source, node, depth)
    # Of a model that is made here the parts are plain as well.
    return is_unknown(source, node.value, depth + 1) if is_model(last_word(node.value)) else True


def _is_inside_ddp(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is what DistributedDataParallel holds, which this source has made in any case."""
    outer = node.value if node.attr.value == "module" else None
    if isinstance(outer, cst.Name) and outer in source.index.scopes:
        value = last_value(source.index, outer)
        values = [value] if value is not None else []
    else:
        values = values_set(source.index, outer) if isinstance(outer, cst.Attribute) else []
    is_chosen = any(isinstance(a, (cst.If, cst.Try)) for v in values for a in source.index.ancestors(v))
    are_ddps = [isinstance(v, cst.Call) and bool(source.index.qualified(v.func) & DDP) for v in values]
    return bool(values) and all(are_ddps) and not is_chosen


def _is_known(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether the source shows what a model is; where it speaks of no FSDP only checks may show it."""
    if "fully_shard" in source.code and _is_of_fsdp2(source, node):
        return True
    if not source.links.is_linked and not source.uses_fsdp1:
        return source.guards.is_of_other_wrapper(node) or source.guards.is_without_fsdp(node)
    # A call that gives DistributedDataParallel's says nothing of those that are not seen. Of an optimizer its
    # groups may be known, and of a module that has a sharded one its parameters: what asks for its state has
    # still to be looked at.
    known = source.models.kinds(node)
    kinds = {each for each in known if each != WRAPS and not each.startswith((".param_groups>", ".state>"))}
    # Of what our function shards in another file, that and no more is known.
    ours = {"fsdp2", "other"} if source.links.prepared is not None else set()
    return bool(kinds - {"ddp"} - ours) or source.models.is_other_branch(node)


def _is_of_fsdp2(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether the source gives a model to FSDP2's functions itself, or calls here give such a one."""
    models = source.models
    given = (call.args[0].value for call in source.calls if call.args and _is_fsdp2s(source, call))
    known = {models.key_of(each) for each in given} - {None}
    if models.key_of(node) in known:
        return True
    held = list(stands_for(source.index, source.guards, node)) if isinstance(node, cst.Name) else []
    return bool(held) and all(models.key_of(each) in known or models.is_fsdp2(each) for each in held)


def _is_fsdp2s(source: Source, call: cst.Call) -> bool:
    return bool(source.index.qualified(call.func) & FSDP2)


def _is_unknown_attribute(source: Source, node: cst.Attribute, depth: int) -> bool:
    """Tell so of ``self.model``: what a module has is a part of a model, and as that model is."""
    owner = source.index.class_of(node)
    if owner is None:
        return source.index.function(node) is not None  # of a function that is made a method elsewhere
    if owner in source.models.sets_any_name:
        return True
    if any(_IS_MODULE.search(dotted(base.value) or "") for base in owner.bases):
        return False
    values = [*values_set(source.index, node), *_values_taken_apart(owner, text_of(node))]
    if any(_is_prepared(source, each, node) for each in values):
        return True
    return all(_comes_from_elsewhere(source, each, depth) for each in values if text_of(each) != "None")


def _values_taken_apart(owner: cst.ClassDef, text: str) -> Iterator[cst.BaseExpression]:
    """Yield what ``self.model, self.tokenizer = load(path)`` takes apart in a class."""
    for assign in walk_for(owner, cst.Assign):
        targets = [each.target for each in assign.targets if isinstance(each.target, (cst.List, cst.Tuple))]
        for target in targets:
            for place, part in enumerate(target.elements):
                if text_of(part.value) == text:
                    yield _part_of(assign.value, place, len(target.elements))


def _part_of(value: cst.BaseExpression, place: int, count: int) -> cst.BaseExpression:
    """Return what stands at a place of ``a, b = (x, y)``; the whole where that is not seen."""
    if isinstance(value, (cst.List, cst.Tuple)) and len(value.elements) == count:
        return value.elements[place].value
    return value


def _is_unknown_name(source: Source, node: cst.Name, depth: int) -> bool:
    bindings = source.index.scopes[node].lookup(node.value) if node in source.index.scopes else []
    # `params = list(params)` holds what it did.
    same = {"None", f"[{node.value}]", *(f"{name}({node.value})" for name in _LISTS)}
    given = [each for each in bindings if each.value is None or text_of(each.value) not in same]
    if any(_is_prepared(source, each.value, node) for each in given):
        return True
    return bool(given) and all(
        each.kind in {"param", "other"}
        or (each.value is not None and _comes_from_elsewhere(source, each.value, depth))
        for each in given
    )


def _is_prepared(source: Source, value: cst.BaseExpression | None, node: cst.CSTNode) -> bool:
    """Tell whether a framework gave a model above a place, in a source that knows of FSDP: it may be asked.

    How it is launched may stand in no file of the project.
    """
    if not isinstance(value, cst.Call) or not (
        method_that_shards(source.index, value.func) or set_up(source.index, value)
    ):
        return False
    facts = source.guards.facts(node)
    if any(fsdp_said(test, truth=truth, index=source.index) is False for test, truth in facts):
        return False
    is_above = source.index.order[value] < source.index.order[node]
    is_here = source.index.function(value) is source.index.function(node)
    if not is_above and is_here:
        return False
    return imports_fsdp1(source.index) or asks_for_fsdp(source.index)


def _comes_from_elsewhere(source: Source, value: cst.BaseExpression, depth: int) -> bool:
    """Tell whether a value is made by an object that is not seen, or is unknown itself."""
    if not isinstance(value, cst.Call):
        return isinstance(value, (cst.Name, cst.Attribute, cst.Subscript)) and is_unknown(
            source, value, depth + 1
        )
    if is_set_up_plain(source.index, value):
        return False
    name = last_name(value.func)
    if not name and isinstance(value.func, cst.Attribute):  # `make(x).eval()`
        shards = _SHARDS.search(value.func.attr.value) is not None  # `make(x).prepare(net)`
        return shards or _comes_from_elsewhere(source, value.func.value, depth)
    if not name:  # `WRAPPERS[name](net)`
        return any(is_model(last_word(arg.value)) for arg in value.args)
    if name in _LISTS and value.args:
        return _comes_from_elsewhere(source, value.args[0].value, depth + 1)
    is_seen = isinstance(value.func, cst.Name) or bool(source.index.qualified(value.func))
    return not is_seen and not makes_anew(name)
