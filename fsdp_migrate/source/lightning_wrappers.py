"""Lightning's FSDP1 strategy, as another package is asked for it: by its word, and settings beside that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, last_name, named_arguments, text_of, walk


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.text import Source


WRAPPED: Final = (
    "where this strategy is FSDP, what is called here makes it, by FSDP1, and goes on so: see that it can be "
    "given Lightning's ModelParallelStrategy, and its module a configure_model that calls "
    "prepare_fully_shard(self, {...}) with these settings."
)
_SETTINGS: Final = re.compile(r"^(fsdp|strategy)_(\w+_)?(args|config|kwargs|options|params|settings)$")
_CALLED: Final = frozenset({"Fabric", "Trainer"})


def wrapped_strategies(source: Source) -> Iterator[cst.Call]:
    """Yield calls that are given a strategy by its name, with what FSDP1's arguments are made of beside it.

    ``Experiment(strategy=args.strategy, strategy_kwargs={"mixed_precision": MixedPrecision(...)})``
    """
    words = [node for node, name in source.references.items() if name.split(".")[0] in catalog.ARGUMENT_WORDS]
    for call in source.calls if words else ():
        given = named_arguments(call)
        name = last_name(call.func)
        if "strategy" not in given or isinstance(given["strategy"], cst.Call) or name in _CALLED:
            continue
        settings = [value for key, value in given.items() if _SETTINGS.search(key)]
        if any(_is_made_of(source, value, words) for value in settings):
            yield call


def _is_made_of(source: Source, value: cst.BaseExpression, words: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a dict holds one of some words, there or where it is filled."""
    inside = set(walk(value))
    if any(word in inside for word in words):
        return True
    text = dotted(value)
    for word in words if text is not None else ():
        line = next((above for above in source.index.ancestors(word) if isinstance(above, cst.Assign)), None)
        if line is not None and any(_is_named(each.target, text) for each in line.targets):
            return True
        for above in source.index.ancestors(word):
            func = above.func if isinstance(above, cst.Call) else None
            if isinstance(func, cst.Attribute) and func.attr.value == "update" and dotted(func.value) == text:
                return True
    return False


def _is_named(target: cst.BaseExpression, text: str | None) -> bool:
    """Tell whether an assignment makes a dict, or one of its items: ``kwargs["mixed_precision"] = ...``."""
    whole = target.value if isinstance(target, cst.Subscript) else target
    return text is not None and text_of(whole) == text
