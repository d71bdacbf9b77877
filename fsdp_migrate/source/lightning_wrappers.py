"""Lightning's FSDP1 strategy, as another package is asked for it: by its word, or by a class of its own."""

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
_OF_ANOTHER: Final = (
    "`{}` of the package {} derives, by its name, from Lightning's FSDPStrategy, and shards by FSDP1. It is "
    "not migrated here, and stays FSDP1 until that package has a strategy for FSDP2: take that where it has "
    "one, or Lightning's ModelParallelStrategy, with prepare_fully_shard(self, {{...}}) in the module's "
    "configure_model, and see what `{}` does beside sharding."
)
_STRATEGY: Final = re.compile(r"FSDPStrategy\Z")
# Ray's is told of by its own words.
_TOLD_ELSEWHERE: Final = "ray.train.lightning."
_LIGHTNING: Final = re.compile(r"\b(?:pytorch_)?lightning\b", re.IGNORECASE)
_FSDP1_WORDS: Final = frozenset(
    {"auto_wrap_policy", "cpu_offload", "limit_all_gathers", "sharding_strategy", "state_dict_type"}
)
_LOOKS: Final = frozenset({"cast", "getattr", "hasattr", "isinstance", "issubclass"})
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


def strategies_of_others(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield uses of strategies of FSDP that packages outside of the project have, with what to say.

    ``NLPFSDPStrategy(sharding_strategy="full")`` of NeMo shards by FSDP1, and no rewriting reaches it.
    """
    for node in (*source.loads, *source.attributes) if source.links.foreign else ():
        for name in sorted(source.index.qualified(node)):
            package, _, rest = name.partition(".")
            is_strategy = package in source.links.foreign and _STRATEGY.search(rest)
            if is_strategy and not name.startswith(_TOLD_ELSEWHERE) and _is_used(source, node):
                last = rest.rpartition(".")[2]
                yield node, _OF_ANOTHER.format(last, package, last)
                break


def _is_used(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a class is made, derived from or handed on, as one of Lightning's."""
    above = source.index.parents[node]
    if isinstance(above, cst.Call) and above.func is node:
        arg = source.index.parents[above]
        is_given = isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "strategy"
        if is_given or not _FSDP1_WORDS.isdisjoint(named_arguments(above)):
            return True
    elif isinstance(above, cst.Arg):
        call = source.index.parents[above]
        if isinstance(call, cst.Call) and last_name(call.func) in _LOOKS:
            return False
    elif not isinstance(above, (cst.Assign, cst.DictElement, cst.IfExp, cst.Return)):
        return False
    return _LIGHTNING.search(source.code) is not None


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
