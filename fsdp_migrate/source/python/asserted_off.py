"""What a branch for FSDP's models asserts to be off: below it there are none of these where that is on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value, was_run
from fsdp_migrate.source.python.made_sure import asks_class, made_sure
from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index


class _Branch(NamedTuple):
    """A branch of a choice, with what its statements make sure."""

    choice: cst.If
    truth: bool
    sure: tuple[tuple[cst.BaseExpression, bool], ...]


def is_asserted_off(models: ModelKinds, node: cst.CSTNode) -> bool:
    """Tell whether a place is reached only where what the branch for FSDP above it asserts is not so.

    ``if use_lora:`` is of no sharded model, below ``if isinstance(model, FSDP): assert not use_lora``.
    """
    return any(
        models.switches.contradicts(test, truth, each.choice, node)
        for each in _branches(models.index)
        if _is_above(models.index, each.choice, node) and _is_of_fsdp(models, each, node)
        for test, truth in each.sure
    )


@functools.lru_cache(maxsize=8)
def _branches(index: Index) -> tuple[_Branch, ...]:
    found = []
    for each in index.by_kind.get(cst.If, ()):
        choice = cst.ensure_type(each, cst.If)
        other = choice.orelse.body if isinstance(choice.orelse, cst.Else) else None
        for body, truth in ((choice.body, True), (other, False)):
            known = made_sure(body) if isinstance(body, cst.IndentedBlock) else ()
            sure = tuple((test, said) for _, test, said in known)
            found += [_Branch(choice, truth, sure)] if sure else []
    return tuple(found)


def _is_above(index: Index, choice: cst.If, node: cst.CSTNode) -> bool:
    """Tell whether a choice was made before a place is reached: above it, or as its object was made."""
    made, function = index.function(choice), index.function(node)
    if made is function:
        return index.order[choice] < index.order[node] and was_run(index, choice, node)
    is_maker = made is not None and made.name.value == "__init__" and function is not None
    is_its = is_maker and index.class_of(choice) is index.class_of(node) is not None
    return is_its and made is not None and index.parents[choice] is made.body


def _is_of_fsdp(models: ModelKinds, branch: _Branch, node: cst.CSTNode) -> bool:
    """Tell whether a model at a place, where it is FSDP1's, took that branch."""
    test = branch.choice.test
    # Of `isinstance(model, FSDP) and first` some take the other branch, `or` lets others into this one alone.
    parts = [cst.ensure_type(each, cst.BooleanOperation) for each in walk_for(test, cst.BooleanOperation)]
    if parts and (not branch.truth or any(isinstance(each.operator, cst.And) for each in parts)):
        return False
    asked = {text_of(call.args[0].value) for call in walk_for(test, cst.Call) if asks_class(call)}
    texts = asked & set(_texts_of(models.index, node)) if asked else {""}
    return any(models.guards.excludes(test, text, truth=not branch.truth) for text in texts)


def _texts_of(index: Index, node: cst.CSTNode) -> Iterator[str]:
    """Yield how a model is called: ``model`` of ``base = model.module if wrapped else model``."""
    held = last_value(index, node) if isinstance(node, (cst.Name, cst.Attribute)) else None
    for each in (node, *([held] if held is not None else ())):
        parts = (part for kind in (cst.Name, cst.Attribute) for part in walk_for(each, kind))
        yield from {text_of(each), *map(text_of, parts)}
