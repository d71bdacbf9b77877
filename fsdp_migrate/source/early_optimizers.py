"""Optimizers from before sharding, which trained nothing where FSDP1 made parameters flat, and train now."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, literal, named_arguments, text_of, walk_for, word_of
from fsdp_migrate.source.python.starred_keys import is_given_by_stars
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.text import Source


TRAINS_NOW: Final = (
    "without use_orig_params=True this optimizer trained nothing of the model under FSDP1, whose flat "
    "parameters it did not hold. It trains now: its learning rate was never tried, and checkpoints of the "
    "old run have the first weights."
)
_PLACE: Final = catalog.CONSTRUCTOR_ARGUMENTS.index("use_orig_params")
# What FSDP1 left out of its flat parameters such an optimizer did train.
_LEAVE_OUT: Final = frozenset({"ignored_modules", "ignored_parameters", "ignored_states"})


def early_optimizers(
    source: Source,
    made: cst.Call,
    call: cst.Call,
    optimizers: Collection[str],
    beside: Collection[cst.Call],
) -> Iterator[Found]:
    """Find optimizers that FSDP1's flat parameters took everything from.

    Args:
        source: The source.
        made: The call that has the arguments of FSDP1: of the class, or of a partial of it.
        call: The call that is given the model.
        optimizers: What they are called that were made of its parameters before.
        beside: Those that the statement of the call itself makes before it.
    """
    used = [each for each in optimizers if _is_used_below(source, call, each)]
    is_filled = any(_is_filled_since(source, call, each) for each in used)
    if (used or beside) and _are_flat(source, made) and not is_filled:
        yield Found("FM453", call, TRAINS_NOW, "commented")


def _are_flat(source: Source, made: cst.Call) -> bool:
    """Tell whether parameters are flat for certain: ``use_orig_params`` is false, or is not given."""
    placed = [arg for arg in made.args if arg.keyword is None and arg.star != "**"]
    if any(arg.star for arg in placed) or len(placed) > _PLACE:
        return False
    if not _is_seen_by_stars(source, made):
        return False
    named = named_arguments(made)
    if not _LEAVE_OUT.isdisjoint(named):
        return False
    return "use_orig_params" not in named or literal(named["use_orig_params"]) is False


def _is_seen_by_stars(source: Source, made: cst.Call) -> bool:
    """Tell whether what is given by two stars is seen, and decides nothing here."""
    if all(arg.star != "**" for arg in made.args):
        return True
    func = text_of(made.func)
    try:
        tree = parse_any(source.code)
    except SyntaxError:  # of a newer Python
        return False
    found = (
        is_given_by_stars(tree, lambda call: ast.unparse(call.func) == func, name)
        for name in ("use_orig_params", *_LEAVE_OUT)
    )
    return all(each is False for each in found)


def _is_used_below(source: Source, call: cst.Call, optimizer: str) -> bool:
    """Tell whether an optimizer may step: what a function keeps to itself and never reads again does not."""
    if "." in optimizer or source.index.function(call) is None:
        return True
    place = source.position(call)
    return any(name.value == optimizer and source.position(name) > place for name in source.loads)


def _is_filled_since(source: Source, call: cst.Call, optimizer: str) -> bool:
    """Tell whether an optimizer may be another one, or hold other parameters, when it steps."""
    function, place = source.index.function(call), source.position(call)
    for assign in source.assignments:
        parts = [part for each in assign.targets for part in _parts(each.target)]
        is_here = source.index.function(assign) is function
        if optimizer not in map(dotted, parts) or (is_here and source.position(assign) < place):
            continue
        if is_here or "." in optimizer:
            return True
    return any(_gives_parameters(source, node, optimizer) for node in source.attributes)


def _gives_parameters(source: Source, node: cst.Attribute, optimizer: str) -> bool:
    """Tell whether an attribute of an optimizer is one by which it is given other parameters."""
    if dotted(node.value) != optimizer or node.attr.value not in {"add_param_group", "param_groups"}:
        return False
    above = source.index.parents[node]
    if isinstance(above, cst.Call) and above.func is node:
        return True  # add_param_group
    if isinstance(above, (cst.AssignTarget, cst.AugAssign, cst.Attribute)):
        return True  # another list, or `param_groups.append(...)`
    if isinstance(above, cst.Subscript):
        return _sets_parameters(source, above)
    if not isinstance(above, cst.For) or above.iter is not node:
        return False
    group = text_of(above.target)
    parts = (each for each in walk_for(above.body, cst.Subscript) if text_of(each.value) == group)
    return any(_is_set(source, each) and _is_of_parameters(each) for each in parts)


def _sets_parameters(source: Source, group: cst.Subscript) -> bool:
    """Tell whether the parameters of ``param_groups[0]`` are set, or the group is another one."""
    above = source.index.parents[group]
    if isinstance(above, cst.Subscript) and above.value is group:
        return _is_of_parameters(above)
    return _is_set(source, group)


def _is_set(source: Source, node: cst.Subscript) -> bool:
    return isinstance(source.index.parents[node], (cst.AssignTarget, cst.AugAssign))


def _is_of_parameters(node: cst.Subscript) -> bool:
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(index, cst.Index) and word_of(index.value) == "params"


def _parts(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [each.value for each in target.elements] if isinstance(target, (cst.List, cst.Tuple)) else [target]
