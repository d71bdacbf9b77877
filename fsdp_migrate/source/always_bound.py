"""Whether a name is bound on every way to a place, so that what is written there may read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.nodes import bound_in, dotted, parameters_of, targets_of, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


def is_always_bound(source: Source, name: str, place: cst.CSTNode) -> bool:
    """Tell whether a name, or an attribute such as ``self.optimizer``, has a value wherever a place runs.

    What another function binds is taken to be there.
    """
    index, function = source.index, source.index.function(place)
    if "." in name:
        if any(index.function(each) is not function for each in index.places_set(name)):
            return True
    elif function is not None and any(each.name.value == name for each in parameters_of(function)):
        return True
    below: cst.CSTNode = place
    for above in index.ancestors(place):
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            before = above.body[: above.body.index(below)] if below in above.body else ()
            if any(_binds(each, name) for each in before):
                return True
        if above is function:
            break
        below = above
    assigns = (each for each in source.assignments if index.function(each) is function and _sets(each, name))
    return any(
        index.order[each] < index.order[place] and runs_before_too(source, each, place) for each in assigns
    )


def runs_before_too(source: Source, line: cst.CSTNode, place: cst.CSTNode) -> bool:
    """Tell whether the tests that a line above a place stands under hold at that place as well."""
    known = {(text_of(test), truth) for test, truth in source.models.guards.facts(place)}
    return all((text_of(test), truth) in known for test, truth in source.models.guards.facts(line))


def _sets(assign: cst.Assign | cst.AnnAssign, name: str) -> bool:
    return any(dotted(part) == name for target in targets_of(assign) for part in bound_in(target))


def _binds(line: cst.CSTNode, name: str) -> bool:
    """Tell whether a statement binds a name whichever way it takes."""
    if isinstance(line, cst.SimpleStatementLine):
        made = (each for each in line.body if isinstance(each, (cst.Assign, cst.AnnAssign)))
        return any(_sets(each, name) for each in made if each.value is not None)
    if isinstance(line, (cst.With, cst.Try, cst.TryStar)):
        return any(_binds(each, name) for each in line.body.body)
    if not isinstance(line, cst.If) or line.orelse is None:
        return False
    other = line.orelse
    is_in_other = (
        _binds(other, name)
        if isinstance(other, cst.If)
        else _is_bound_in(cst.ensure_type(other, cst.Else).body, name)
    )
    return is_in_other and _is_bound_in(line.body, name)


def _is_bound_in(body: cst.BaseSuite, name: str) -> bool:
    return leaves(body) or any(_binds(each, name) for each in body.body)
