"""Objects that only hand on what they are asked to the model that they hold: ``__getattr__``, and no module.

FSDP1's functions asked such an object as they asked the model. FSDP2's go through modules by their names, and
fail at it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.framework_words import handed_to, is_an_accelerator
from fsdp_migrate.source.python.nodes import argument_of, short
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SAID: Final = (
    "`{0}` is no module, but an object that hands on what it is asked to `.{1}`: what FSDP2 has goes through "
    "modules by their names, and raises here. {2}"
)
_GIVE: Final = "Give it `{}.{}`."
_TAKE: Final = "With `{}.{}` in its place: {}."
# These take a model, and fail at anything else.
_TAKES_MODULES: Final = frozenset({"FM308", "FM309", "FM311", "FM312", "FM313"})
_OF_ACCELERATE: Final = frozenset({"get_state_dict", "save_model"})


def with_inner(source: Source, found: Found) -> Found:
    """Return a use as it was found, or for a comment only where it would give such an object to FSDP2's."""
    if (
        found.action != "rewritten"
        or found.code not in _TAKES_MODULES
        or not isinstance(found.node, cst.Call)
    ):
        return found
    func = found.node.func
    asked = [func.value] if isinstance(func, cst.Attribute) else []
    for node in (*asked, *(arg.value for arg in found.node.args)):
        name = handed_to(source, node)
        if name is not None:
            text = short(node)
            becomes = found.becomes.rstrip(".").replace(f"({text},", f"({text}.{name},")
            said = _SAID.format(text, name, _TAKE.format(text, name, becomes))
            return replace(found, becomes=said, action="commented", edits=(), needs=(), note="")
    return found


def given_to_accelerate(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find such an object that Accelerate is to save, or to take the whole state of."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _OF_ACCELERATE:
        return
    given = argument_of(call, 0, {"model"})
    name = handed_to(source, given) if given is not None else None
    if given is not None and name is not None and is_an_accelerator(source, func.value):
        text = short(given)
        yield Found("FM308", call, _SAID.format(text, name, _GIVE.format(text, name)), "commented")
