"""What is added to a comment on a DTensor: who has to call, and which others are plain.

Between a forward and its backward the root, and each unit that is not sharded again, has whole parameters,
plain tensors, under FSDP1 and FSDP2: they have no ``.to_local()``. Measured with Lightning 2.6, two ranks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.between_passes import LIGHTNINGS, is_between
from fsdp_migrate.source.ignored_states import tells_to_ignore
from fsdp_migrate.source.plain_tensors import changes_plain
from fsdp_migrate.source.python.lightning_models import UNITS, is_run_sharded, run_in
from fsdp_migrate.source.python.nodes import walk_for
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.read_states import is_summed_state


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Found


OVER_PARTS: Final = (
    "this is a DTensor now, which collectives do not take: give them .to_local(). What is done over this "
    "group, which is not FSDP's, stays."
)
"""What is said of a collective over the ranks that hold other parts of a model."""
NORM_OVER_PARTS: Final = (
    "the norm is that of the whole over FSDP's ranks now: where it is a DTensor, take .full_tensor() of it. "
    "The sum over this group, which is not FSDP's, stays."
)
_GATHERS: Final = (
    "One rank alone comes here, and full_tensor() waits for all: call it above this branch, on every rank, "
    "or take .to_local(), which is that rank's part."
)
_IN_PLACE: Final = "As it is, this raises: torch changes no plain tensor in place by a DTensor."
_IGNORED: Final = (
    "Of a parameter that FSDP ignores, which stays plain, take neither: ask isinstance(p, DTensor) first."
)
_STEPS: Final = "The state's `step` is plain: ask isinstance(v, DTensor) first."
_TAKES: Final = re.compile(r"\.(?:full_tensor|to_local)\(\)")
_MAY_BE_WHOLE: Final = (
    "Between a forward and its backward the root's parameters are whole, plain tensors, which have neither, "
    "as under FSDP1: take p.to_local() if isinstance(p, DTensor) else p."
)
_IS_WHOLE: Final = (
    "After an evaluation the root's parameters are whole, plain tensors, which have neither: take "
    "p.full_tensor() if isinstance(p, DTensor) else p, and leave out what sums that over the ranks."
)
_OTHER_TENSORS: Final = frozenset({"grad", "param_groups"})


def with_hints(values: ParameterValues, node: cst.CSTNode, said: str) -> str:
    """Return what is said of a place, with what its advice does not hold for."""
    source = values.source
    found = [said]
    if isinstance(node, cst.Call) and changes_plain(source, node):
        found.append(_IN_PLACE)
    if "full_tensor()" in said and runs_on_one_rank(source.index, source.models.guards, node):
        found.append(_GATHERS)
    if _TAKES.search(said) is not None:
        if isinstance(node, cst.Call) and is_summed_state(source.models, node):
            found.append(_STEPS)
        elif source.models.links.ignores or tells_to_ignore(source.code):
            found.append(_IGNORED)
    return " ".join(found)


def where_whole(
    source: Source, uses: Iterator[Found], is_after_evaluation: Callable[[Source, cst.CSTNode], bool]
) -> Iterator[Found]:
    """Yield what is found, with what holds between a forward and its backward; or not, where all is whole."""
    for each in uses:
        is_asked = _TAKES.search(each.becomes) is not None and "isinstance(" not in each.becomes
        if is_asked and each.action == "commented" and is_after_evaluation(source, each.node):
            yield replace(each, becomes=f"{each.becomes} {_IS_WHOLE}")
        elif each.action != "commented" or not is_asked or not _is_between(source, each.node):
            yield each
        elif not _is_of_the_root(source, each.node):
            yield replace(each, becomes=f"{each.becomes} {_MAY_BE_WHOLE}")


def _is_between(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether parameters, not their gradients, are gone through between a forward and its backward."""
    # What an optimizer holds are the sharded ones, at all times.
    home = source.index.function(node) or source.index.statement(node)
    if any(each.attr.value in _OTHER_TENSORS for each in walk_for(home, cst.Attribute)):
        return False
    return is_between(source, node)


def _is_of_the_root(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether Lightning runs it where all parameters are whole, because no units were asked for."""
    function = source.index.function(node)
    owner = source.index.class_of(node)
    if function is None or owner is None or source.models.links.has_units or UNITS.search(source.code):
        return False
    name = function.name.value
    if LIGHTNINGS.search(name):
        return True
    hooks = (each.name.value for each in walk_for(owner, cst.FunctionDef))
    others = [re.escape(each) for each in hooks if is_run_sharded(each) and not LIGHTNINGS.search(each)]
    is_run = run_in(owner, LIGHTNINGS).search(name) is not None
    return is_run and not (others and run_in(owner, re.compile(f"^(?:{'|'.join(others)})$")).search(name))
