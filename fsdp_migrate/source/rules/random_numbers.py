"""Random numbers that are drawn into a sharded model's parameters and gradients, or like them.

Torch draws them as DTensor does it. On a GPU the first of these sets every rank's random state to rank 0's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.nodes import last_name
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "random-numbers"
CODES = ("FM336",)

_MEANT = (
    "random numbers for DTensors: on a GPU torch 2.13 sets the random state of every rank to rank 0's at the "
    "first of these (2.7 does not), so that ranks with seeds of their own draw the same dropout and noise "
    "from here on, without an error; FSDP1 drew for this rank's part, and no more. Draw for that part alone: "
    "{}. Or delete this comment, if all ranks have one seed."
)
_LIKE = frozenset({"bernoulli", "rand_like", "randint_like", "randn_like"})
_IN_PLACE = frozenset({"bernoulli_", "normal_", "uniform_"})
_INIT = frozenset({"normal_", "trunc_normal_", "uniform_"})
"""What `torch.nn.init` has that takes a flat part, of one dimension, as FSDP1 showed it."""
_TORCH, _OF_INIT = "torch.", "torch.nn.init."


def find(source: Source) -> Iterator[Found]:
    """Find calls that draw random numbers for what is a DTensor now."""
    values = ParameterValues(source)
    for call in source.calls:
        last = last_name(call.func)
        if last not in _LIKE | _IN_PLACE | _INIT:
            continue
        given = _drawn_for(source, call, last)
        if given is None or source.contexts.is_summoned(call) or not values.is_one(given[0]):
            continue
        yield Found("FM336", call, _MEANT.format(given[1]), "commented")


def _drawn_for(source: Source, call: cst.Call, last: str) -> tuple[cst.BaseExpression, str] | None:
    """Return what a call draws random numbers for, and how it is written for this rank's part."""
    named = source.index.qualified(call.func)
    first = call.args[0].value if call.args and not call.args[0].star else None
    if first is not None and last in _INIT and f"{_OF_INIT}{last}" in named:
        return first, f"nn.init.{last}(p.to_local())"
    if first is not None and last in _LIKE and f"{_TORCH}{last}" in named:
        return first, f"p.to_local().add_(torch.{last}(p.to_local()))"
    if last in _IN_PLACE and isinstance(call.func, cst.Attribute) and not named:
        return call.func.value, f"p.to_local().{last}()"
    return None
