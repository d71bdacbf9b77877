"""Modules of a sharded model that are chosen by their names, in which FSDP1's wrappers stood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.plain_copies import PlainCopies
from fsdp_migrate.source.python.held import FLAT
from fsdp_migrate.source.python.named_loops import named_loops
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.python.strategies import is_one_unit
from fsdp_migrate.source.rules.parameter_names import (
    CLEANED,
    LOOPS,
    OF_A_MODULE,
    across_units,
    has_units,
    is_from_the_start,
    is_of_wholes,
    shows_the_inner,
    tests_of_names,
)
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "module-names"
CODES = ("FM318",)

_NONE = (
    "FSDP1's names of modules began with `_fsdp_wrapped_module` here, so that none was like this; FSDP2's "
    "are the model's, so this decides differently, without an error. Decide which is meant: what depends on "
    "it was not done."
)
_OF_UNITS = (
    "of what stands in a unit FSDP1's names of modules had `_fsdp_wrapped_module` behind the unit's here, so "
    "that none was like this; FSDP2's are the model's, so this decides differently, without an error. Decide "
    "which is meant: what depends on it was not done."
)


def find(source: Source) -> Iterator[Found]:
    """Find where a loop over a sharded model's modules asks for names that FSDP1's modules did not have."""
    copies: PlainCopies | None = None
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "named_modules":
            continue
        model = whole_of(source, func.value)
        is_within = model is None and FLAT in source.models.kinds(func.value)
        if model is None and not is_within:
            continue
        copies = copies or PlainCopies(ParameterValues(source))
        for loop, names in named_loops(source.index, call):
            function = source.index.function(loop) or source.module
            if isinstance(loop, LOOPS) and not CLEANED.search(text_of(function)):
                said_of = dict(_said(source, func.value, model, (loop, names), copies))
                yield from (Found("FM318", node, said, "commented") for node, said in said_of.items())


def _said(
    source: Source,
    asked: cst.BaseExpression,
    model: cst.BaseExpression | None,
    named: tuple[cst.CSTNode, tuple[str, str]],
    copies: PlainCopies,
) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield what is asked of names in a loop, and what is said of it; what stands nearest the start last."""
    loop, names = named
    is_a_modules = model is not None and source.models.sharded_by(model) in OF_A_MODULE
    if model is None or (has_units(source, model) if is_a_modules else not is_one_unit(source.models, model)):
        yield from ((test, _OF_UNITS) for test in across_units(source, loop, names, copies))
    # A part has names of its own, and so has what Lightning or the Trainer shows within FSDP1's wrapper.
    if model is not asked or is_a_modules or shows_the_inner(source, asked):
        return
    for test, is_start in tests_of_names(source, loop, names):
        is_told = is_start or is_of_wholes(source, test, names[0]) or is_from_the_start(source, test)
        if is_told and _names_a_part(test):
            yield test, _NONE


def _names_a_part(test: cst.BaseExpression) -> bool:
    """Tell whether it is no question for the model itself, whose name is empty: ``if n == "": continue``."""
    texts = [str(each.evaluated_value) for each in walk_for(test, cst.SimpleString)]
    return all(texts)
