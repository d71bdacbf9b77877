"""``functools.partial(FSDP, ...)`` becomes a partial of ``prepare_fully_shard``, where its calls are seen."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.layout import dict_argument
from fsdp_migrate.source.rules.constructor import (
    PREPARE,
    earlier_optimizers,
    nested_calls,
    of_unknown,
    optimizers_of_flat,
    with_optimizers,
    words_of_container,
    words_of_nested,
    wrapping_calls,
)
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "partial"
CODES = ("FM303", "FM331", "FM422", "FM453")

_UNSEEN = (
    "a partial of FSDP whose calls are not all seen here: make it "
    "functools.partial(prepare_fully_shard, fsdp1_config={...}), and see that calls give it the model only."
)


def find(source: Source) -> Iterator[Found]:
    """Find every ``functools.partial`` of the class."""
    for call in source.calls:
        if "functools.partial" not in source.index.qualified(call.func) or not call.args:
            continue
        first = call.args[0].value
        if source.index.fsdp1(first) != catalog.FSDP:
            continue
        calls = _calls_with_a_model(source, call) if len(call.args) > 1 else None
        said = _UNSEEN if calls is None else _problem(source, calls)
        if calls is None or said is not None:
            yield Found("FM303", call, said or _UNSEEN, "commented", covers=(first,))
        else:
            yield from of_unknown(call)
            for each in calls:
                yield from optimizers_of_flat(source, call, each)
            yield _rewritten(source, call, first, calls)


def _problem(source: Source, calls: list[cst.Call]) -> str | None:
    """Return what is said where a call of a partial stays as one of the class does."""
    wrapping = wrapping_calls(source)
    nested = nested_calls(source, wrapping)
    inside = next((call for call in calls if call in nested), None)
    if inside is not None:
        return words_of_nested(source, inside, wrapping)
    return next(filter(None, (words_of_container(source, call) for call in calls)), None)


def _rewritten(source: Source, call: cst.Call, first: cst.BaseExpression, calls: list[cst.Call]) -> Found:
    prepare = source.local_name(PREPARE)

    def build(updated: cst.Call) -> cst.Call:
        # The class stands where a call of it has the model.
        changed = dict_argument(updated, ("class",))
        tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        config = changed.args[1].with_changes(keyword=cst.Name("fsdp1_config"), equal=tight)
        target = changed.args[0].with_changes(value=cst.Name(prepare))
        return changed.with_changes(args=[target, config])

    becomes = f"functools.partial({prepare}, fsdp1_config={{...}})"
    edits = (Replace(call, build), *_giving_optimizers(source, calls))
    return Found("FM331", call, becomes, "rewritten", edits, (PREPARE,), (first,))


def _giving_optimizers(source: Source, calls: list[cst.Call]) -> Iterator[Replace]:
    """Yield the calls of a partial whose model optimizers were made of before, which they are given."""
    for each in calls:
        optimizers = earlier_optimizers(source, each)
        if optimizers:
            yield Replace(each, functools.partial(with_optimizers, optimizers=optimizers))


def _calls_with_a_model(source: Source, call: cst.Call) -> list[cst.Call] | None:
    """Return the calls of a partial, or None where not all are seen, or one gives it more than the model."""
    if any(arg.keyword is None and arg.star != "**" for arg in call.args[1:]):
        return None
    above = source.index.parents[call]
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return None
    target = above.targets[0].target
    if not isinstance(target, cst.Name):
        return None
    calls = [_call_with_a_model(source.index.parents[name], name) for name in source.readers(target)]
    seen = [each for each in calls if each is not None]
    return seen if seen and len(seen) == len(calls) else None


def _call_with_a_model(above: cst.CSTNode, name: cst.Name) -> cst.Call | None:
    if not isinstance(above, cst.Call) or above.func is not name or len(above.args) != 1:
        return None
    return above if above.args[0].keyword is None and not above.args[0].star else None
