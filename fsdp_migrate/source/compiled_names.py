"""States whose names had ``_orig_mod.`` of ``torch.compile`` under FSDP1, and have none now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NOTE: Final = (
    "the model is compiled: FSDP1's state had `_orig_mod.` in its names, as named_parameters() has, and this "
    "one has not. See that what looks names up in it, or loads the file into a compiled model, does without."
)
_TAKEN_OUT: Final = re.compile(
    r"(?:replace|removeprefix|re\.sub)\([^()\n]*_orig_mod|_orig_mod\.?['\"]\)\s*:\]"
)


def had_prefix(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model is what this source compiles, so that its state's names lose a prefix.

    Where the source takes the prefix out itself, nothing is lost.
    """
    if "compile" not in source.code or _TAKEN_OUT.search(source.code) is not None:
        return False
    names = {text_of(model), text_of(model).removesuffix(".module"), *_wrapped_as(source, model)}
    return not names.isdisjoint(_compiled(source))


def _compiled(source: Source) -> Iterator[str]:
    """Yield what a compiled model is called: ``model = torch.compile(net)``."""
    for call in source.calls:
        if "torch.compile" in source.index.qualified(call.func):
            above = source.index.parents[call]
            targets = above.targets if isinstance(above, cst.Assign) else ()
            yield from (text_of(each.target) for each in targets)
            # FSDP(torch.compile(net)), which the wrapping's own name stands for
            if isinstance(above, cst.Arg):
                yield text_of(call)


def _wrapped_as(source: Source, model: cst.BaseExpression) -> Iterator[str]:
    """Yield what FSDP1's class was given to make the model: ``net`` of ``model = FSDP(net)``."""
    for call in source.calls:
        above = source.index.parents[call]
        targets = above.targets if isinstance(above, cst.Assign) else ()
        is_its = any(text_of(each.target) == text_of(model) for each in targets)
        if is_its and call.args and source.index.fsdp1(call.func) == catalog.FSDP:
            yield text_of(call.args[0].value)
