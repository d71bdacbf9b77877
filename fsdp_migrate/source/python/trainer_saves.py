"""What Hugging Face's Trainer saves by itself: it gathers the state, whatever context that stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.heirs import HUGGING_FACES, makers
from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


_SAVES: Final = frozenset({"_save_checkpoint", "save_model", "save_state"})
# What such a method calls of the class itself, which may have its own.
_OWN: Final = _SAVES | {"_save"}
_MODELS: Final = ("model", "model_wrapped")
_DEEPEST: Final = 4


def is_saved_by_trainer(index: Index, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether a call is one by which Hugging Face's Trainer, and nothing of a project, saves a model."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _SAVES:
        return False
    is_super = text_of(func.value) == "super()"
    holder = "self" if is_super else text_of(func.value)
    if text_of(model) not in {f"{holder}.{each}" for each in _MODELS}:
        return False
    owner = index.class_of(func) if holder == "self" else None
    if owner is not None:
        own = frozenset() if is_super else _SAVES
        return _is_class(owner, own) and _derives(index, owner)
    classes = list(_classes(index, func.value))
    return bool(classes) and all(_is_trainers(index, each) for each in classes)


def is_read_once_saved(source: Source, state: cst.CSTNode) -> bool:
    """Tell whether a state is given to the Trainer's ``_save`` and read below it, in the same function.

    Under FSDP2 it goes to ``save_pretrained``, which takes each entry out of it. Under FSDP1 the model was no
    ``PreTrainedModel``, and the state stayed whole. Measured with transformers 5.23.
    """
    index = source.index
    above = index.parents[state]
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Name) or target not in index.scopes:
        return False
    readers = [each for each in source.readers(target) if each is not target]
    given = {each: index.parents[index.parents[each]] for each in readers}
    saved = [call for call in given.values() if isinstance(call, cst.Call) and _is_given_to_it(index, call)]
    return any(
        index.order[call] < index.order[each] and given[each] is not call and not index.excludes(call, each)
        for call in saved
        for each in readers
    )


def _is_given_to_it(index: Index, call: cst.Call) -> bool:
    """Tell whether a call is the Trainer's own ``self._save(folder, state_dict=state)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "_save":
        return False
    owner = index.class_of(func) if text_of(func.value) in {"self", "super()"} else None
    own = frozenset() if text_of(func.value) == "super()" else frozenset({"_save"})
    return owner is not None and _is_class(owner, own) and _derives(index, owner)


def _classes(index: Index, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the classes that an object may be of, as annotations and calls say."""
    bindings = index.bindings_of(node) if isinstance(node, cst.Name) and node in index.scopes else []
    given = [each.node for each in bindings if isinstance(each.node, cst.Param)]
    for param in given:
        yield param.annotation.annotation if param.annotation is not None else cst.Ellipsis()  # of any
    if len(given) < len(bindings) or not bindings:
        yield from (call.func for call in makers(index, node) if call is not node)


def _is_trainers(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether a class is Hugging Face's, or one here that leaves its methods as they are."""
    if not isinstance(node, (cst.Attribute, cst.Name)) or depth > _DEEPEST:
        return False
    names = index.qualified(node)
    if names:
        return all(HUGGING_FACES.match(each) and not index.heirs.get(each) for each in names)
    owners = [each.node for each in index.bindings_of(node)] if isinstance(node, cst.Name) else []
    return bool(owners) and all(
        isinstance(each, cst.ClassDef) and _is_class(each, _OWN) and _derives(index, each, depth)
        for each in owners
    )


def _is_class(owner: cst.ClassDef, without: frozenset[str]) -> bool:
    """Tell whether a class has none of some methods."""
    methods = (item.name.value for item in owner.body.body if isinstance(item, cst.FunctionDef))
    return without.isdisjoint(methods)


def _derives(index: Index, owner: cst.ClassDef, depth: int = 0) -> bool:
    bases = [each.value for each in owner.bases]
    return bool(bases) and all(_is_trainers(index, each, depth + 1) for each in bases)
