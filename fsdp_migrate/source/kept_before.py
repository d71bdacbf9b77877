"""What holds a model's parameters from above the call that shards it, and is used below that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.assigned_names import made_by
from fsdp_migrate.source.given_with_model import optimizer_beside
from fsdp_migrate.source.ignored_states import ignored_names
from fsdp_migrate.source.kept_lists import (
    Sharding,
    comes_with,
    holds,
    is_filled,
    is_used_after,
    made_before,
    readers,
    shardings,
)
from fsdp_migrate.source.kept_parameters import assigned_before, given_before, made_beside
from fsdp_migrate.source.python.accelerate_models import prepared
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.nodes import text_of, walk_for
from fsdp_migrate.source.python.parameter_lists import is_only_counted
from fsdp_migrate.source.stepped_lists import stepped_lists
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


KEPT: Final = (
    "this holds the parameters from before sharding, in whose place FSDP2 puts new ones: make it of the "
    "sharded model, or give the optimizers in it to prepare_fully_shard as optimizers=."
)
"""What is said of what FSDP1's class leaves behind."""
_GIVEN: Final = (
    "`{}` may hold the parameters from before sharding, in whose place FSDP2 puts new ones, so that its step "
    "is an error: where it does, give it to prepare_fully_shard as optimizers=."
)


def held_before(source: Source) -> Iterator[Found]:
    """Find what holds a model's parameters from above the call that shards it, and is used below that."""
    for sharding in shardings(source):
        yield from stepped_lists(source, sharding)
    for call in source.calls:
        if source.index.fsdp1(call.func) == catalog.FSDP or _is_wrapping(source, call):
            is_class = source.index.fsdp1(call.func) == catalog.FSDP
            before = dict.fromkeys(_kept(source, call, told=None if is_class else ()))
            yield from (Found("FM446", each, KEPT, "commented") for each in before)
            if (name := optimizer_beside(source, call)) is not None:
                yield Found("FM446", source.index.statement(call), _GIVEN.format(name), "commented")
            if call.args and not call.args[0].star:
                yield from stepped_lists(source, Sharding(call, "", (text_of(call.args[0].value),)))


def _is_wrapping(source: Source, call: cst.Call) -> bool:
    """Tell whether a call of a function, of this file or of another, gives back sharded what it is given."""
    if prepared(source.index, call) or source.models.sharded_by(call):
        return False  # a framework's, of which more is known
    if isinstance(call.func, cst.Attribute) and source.models.certainty(call.func.value) is not None:
        return False  # the model's own, which it gives back: `model.to(device)`
    first = call.args[0].value if call.args and not call.args[0].star else None
    if not isinstance(first, (cst.Name, cst.Attribute)) or "fsdp" not in source.models.kinds(call):
        return False
    is_torchs = any(each.startswith("torch.") for each in source.index.qualified(call.func))
    # What gives a part of what it is given wraps nothing: `getattr(model, "module", model)`.
    is_held = has_model(source.models.kinds(first))
    return not is_torchs and not is_held and source.models.certainty(first) is None


def _kept(source: Source, wrapping: cst.Call, told: Iterable[str] | None = None) -> Iterator[cst.CSTNode]:
    """Yield the assignments before a wrapping that keep parameters, and are used after it."""
    first = wrapping.args[0].value if wrapping.args and not wrapping.args[0].star else None
    if first is None:
        return
    if made_beside(source, wrapping, text_of(first)) or _is_held_beside(source, wrapping, text_of(first)):
        yield source.index.statement(wrapping)
    given = given_before(source, wrapping, text_of(first))
    told = {*(given if told is None else told), *ignored_names(source, wrapping)}
    optimizers = set(assigned_before(source, wrapping, [name for name in given if name not in told]))
    for made in made_before(source, wrapping):
        is_its = made.assign in optimizers or holds(source, made, text_of(first), "")
        is_its = is_its or comes_with(made, text_of(first))
        is_its = is_its or is_filled(source, made, wrapping, [text_of(first)])
        if is_its and made.name not in told and is_used_after(source, made, wrapping):
            yield made.assign


def _is_held_beside(source: Source, wrapping: cst.Call, model: str) -> bool:
    """Tell whether a list is filled before the model is wrapped in one line: ``ps, model = list(..), ..``."""
    above = next((each for each in source.index.ancestors(wrapping) if isinstance(each, cst.Assign)), None)
    order = source.index.order
    return above is not None and any(
        order[made.value] < order[wrapping]
        and wrapping not in set(walk_for(made.value, cst.Call))
        and holds(source, made, model, "")
        and any(
            order[each] > order[wrapping] and not is_only_counted(source.index, each)
            for each in readers(source, above, made.name)
        )
        for made in made_by(above)
        if not made.is_one_of
    )
