"""What fvcore's Checkpointer, and detectron2's, saves and loads of a sharded model by itself.

They ask the model for its state, which FSDP1's gave whole, and load a whole one into it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.heirs import is_itself, led_to, makers
from fsdp_migrate.source.python.nodes import model_argument
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "checkpointers"
CODES = ("FM333",)

_CLASSES: Final = re.compile(r"^(?:fvcore|detectron2)(?:\.\w+)*\.\w*Checkpointer$")
_BY_RANKS: Final = (
    "where its model is sharded, this saves one rank's part of each tensor (DTensor): in a class of your own "
    "let `save` take torch's get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)) on every rank, and write it on one."
)
_REFUSED: Final = (
    "where its model is sharded, a whole state is loaded by the model's own load_state_dict here, which "
    "raises for DTensors. In a class of your own let `_load_model(self, checkpoint)` print what "
    'load_model_state_dict(self.model, checkpoint.pop("model"), strict=False) of fsdp_migrate.runtime gives, '
    "on every rank, and return nothing."
)
_SAID: Final = {
    "_load_model": _REFUSED,
    "load": _REFUSED,
    "resume_or_load": _REFUSED,
    "save": _BY_RANKS,
}
_CALLS: Final = {"resume_or_load": "load", "load": "_load_model"}
"""What each method calls of the object: where that is the project's own, it is looked at there."""


def find(source: Source) -> Iterator[Found]:
    """Find their methods, of a sharded model or in a class of the project that derives from theirs."""
    if "Checkpointer" not in source.code:
        return
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _SAID:
            continue
        is_its = _is_in_its_class(source, func) or _is_of_a_sharded_model(source, func)
        if is_its and source.contexts.around(call) is None:
            yield Found("FM333", call, _SAID[func.attr.value], "commented")


def _is_in_its_class(source: Source, func: cst.Attribute) -> bool:
    """Tell whether it asks the class above for it: by ``super()``, or by ``self`` what is not its own."""
    if not (source.uses_fsdp1 or source.links.is_near) or not is_itself(source.index, func.value, _CLASSES):
        return False
    owner, method = source.index.class_of(func), func.attr.value
    # What the class above does may come back to a method of this one, which is looked at there.
    first = method if isinstance(func.value, cst.Name) else _CALLS.get(method, "")
    return owner is None or not _is_own(_methods(owner), first)


def _is_own(own: set[str], method: str) -> bool:
    """Tell whether a class has a method of its own, or one that the inherited one calls."""
    while method:
        if method in own:
            return True
        method = _CALLS.get(method, "")
    return False


def _methods(owner: cst.ClassDef) -> set[str]:
    return {each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef)}


def _is_of_a_sharded_model(source: Source, func: cst.Attribute) -> bool:
    """Tell whether an object of theirs is asked that was given a sharded model."""
    for call in makers(source.index, func.value):
        if not any(map(_CLASSES.match, led_to(source.index, call.func))):
            continue
        owners = [
            each.node
            for each in (source.index.bindings_of(call.func) if isinstance(call.func, cst.Name) else ())
            if isinstance(each.node, cst.ClassDef)
        ]
        if any(_is_own(_methods(each), func.attr.value) for each in owners):
            continue
        model = model_argument(call, 0)
        if model is not None and source.models.certainty(model) is not None:
            return True
    return False
