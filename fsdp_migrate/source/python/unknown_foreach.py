"""Lists for ``torch._foreach_*`` that may hold a sharded model's parameters and its buffers.

A file that speaks of no FSDP1 model averages what a hook gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.unknown_models import is_model, is_unknown, last_word


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_KINDS = {
    "buffers": "buffers",
    "named_buffers": "buffers",
    "named_parameters": "parameters",
    "parameters": "parameters",
}


def of_foreach(source: Source) -> Iterator[cst.Call]:
    """Yield the first call of each class, or of what is in none, where both kinds of an unknown model go."""
    if "._foreach_" not in source.code:
        return
    taken: dict[tuple[cst.CSTNode | None, str], set[str]] = {}
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _KINDS:
            continue
        if is_model(last_word(func.value)) and is_unknown(source, func.value):
            key = source.index.class_of(call), text_of(func.value)
            taken.setdefault(key, set()).add(_KINDS[func.attr.value])
    both = {owner for (owner, _), kinds in taken.items() if len(kinds) > 1}
    seen: set[cst.CSTNode | None] = set()
    for call in source.calls:
        owner = source.index.class_of(call)
        func = call.func
        is_its = isinstance(func, cst.Attribute) and func.attr.value.startswith("_foreach_")
        if is_its and owner not in seen and (owner in both or (both and owner is not None)):
            seen.add(owner)
            yield call
