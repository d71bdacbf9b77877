"""``.module`` of a model of which nothing shows whether it is the sharded one: FSDP2's has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.framework_words import is_in_a_module
from fsdp_migrate.source.method_calls import is_tried_alone, was_asked_for
from fsdp_migrate.source.python.accelerators import method_that_shards
from fsdp_migrate.source.python.asked_classes import is_of_modules
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.made_sure import asks_class
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.python.unknown_models import is_model, last_word


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SETS = (cst.AnnAssign, cst.AssignTarget, cst.Del, cst.ImportAlias, cst.ImportFrom)


def of_wrappers(source: Source) -> Iterator[tuple[cst.Attribute, cst.BaseExpression]]:
    """Yield each ``model.module`` that is read, with the model; not where something asks for it first."""
    if source.links.keeps_module:
        return
    for node in source.attributes:
        if node.attr.value != "module" or not is_model(last_word(node.value)) or _is_set(source, node):
            continue
        is_asked = was_asked_for(source, node) or is_tried_alone(source, node) or _is_found_out(source, node)
        if not is_asked and not is_in_a_module(source, node.value) and not _is_prepared(source, node.value):
            yield node, node.value


def _is_prepared(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a framework gave it: by FSDP2 it had no such attribute before, and how is not seen."""
    if isinstance(model, cst.Attribute):
        values = values_set(source.index, model)
    else:
        bound = source.index.bindings_of(model) if isinstance(model, cst.Name) else ()
        values = [each.value for each in bound if each.value is not None]
    made = (each for each in values if isinstance(each, cst.Call))
    return any(method_that_shards(source.index, each.func) for each in made)


def _is_found_out(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it stands where something was found out about the model: ``is_wrapper(model)``.

    That it is a module says nothing.
    """
    text, is_module = text_of(node.value), is_of_modules(source.index)
    tests = (test for test, truth in source.models.guards.facts(node) if truth)
    asked = (call for test in tests for call in walk_for(test, cst.Call) if call.args)
    about = (call for call in asked if text_of(call.args[0].value) == text)
    return any(not asks_class(call) or not is_module(call.args[1].value) for call in about)


def _is_set(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is given a value, or is no attribute but a file: ``from core.module import A``."""
    return isinstance(source.index.parents[node], _SETS)
