"""Where an Accelerator has forgotten its models before it is asked something of one.

``Accelerator.free_memory()``, and ``clear()``, which calls it, empty the list of the models that it prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import last_name, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


_FORGETS: Final = frozenset({"free_memory", "clear"})
_PREPARES: Final = frozenset({"prepare", "prepare_model"})
_LOOPS: Final = (cst.For, cst.While)


def may_be_forgotten(source: Source, call: cst.Call) -> bool:
    r"""Tell whether an Accelerator forgot its models before a call of its method, in the same source.

    That is so where it forgets them above the call, or in a loop around it or around what leads to it, and
    prepares none again on the way. What is called in other files is not seen.

    Args:
        source: The source.
        call: The call, ``accelerator.clip_grad_norm_(model.parameters(), 1.0)``.

    Example:
        >>> from fsdp_migrate.source.python.text import Source
        >>> def asked(text):
        ...     source = Source(text)
        ...     return may_be_forgotten(source, source.calls[0])
        >>> loop = "for batch in data:\n    accelerator.clip_grad_norm_(parameters, 1.0)\n"
        >>> free = "accelerator.free_memory()"
        >>> asked(loop), asked(f"{loop}    {free}"), asked(f"{loop}{free}")
        (False, True, False)
    """
    forgets = [each for each in source.calls if _is_of(each, _FORGETS, call)]
    if not forgets:
        return False
    index = source.index
    asked = {id(each) for each in _with_callers(index, source.calls, call)}
    return any(
        _comes_first(index, place, at)
        for each in forgets
        for place in _with_callers(index, source.calls, each)
        for at in _with_callers(index, source.calls, call)
        if id(place) not in asked
    )


def _is_of(call: cst.Call, names: frozenset[str], other: cst.Call) -> bool:
    """Tell whether it is a method of the object that another call asks: by its last name, in any function."""
    func, asked = call.func, other.func
    if not (isinstance(func, cst.Attribute) and isinstance(asked, cst.Attribute)):
        return False
    return func.attr.value in names and last_name(func.value) == last_name(asked.value) != ""


def _with_callers(index: Index, calls: list[cst.Call], call: cst.Call) -> list[cst.Call]:
    """Return a call, and those of this source that come to it: by the last names of functions."""
    found, names = [call], set()
    for each in found:  # which grows meanwhile
        function = index.function(each)
        name = function.name.value if function is not None else ""
        if name and name not in names:
            names.add(name)
            found += [other for other in calls if last_name(other.func) == name and other is not each]
    return found


def _comes_first(index: Index, forgets: cst.Call, asks: cst.Call) -> bool:
    """Tell whether one call runs before another of its function, and no models are prepared in between."""
    if index.function(forgets) is not index.function(asks):
        return False
    order = index.order
    is_above = order[forgets] < order[asks]
    if is_above and not _excludes(index, forgets, asks):
        return not _prepares(index, forgets, asks)
    around = [each for each in index.ancestors(asks) if isinstance(each, _LOOPS)]
    for loop in index.ancestors(forgets):
        if isinstance(loop, _LOOPS) and any(loop is each for each in around):
            return not any(_is_preparing(each) for each in walk_for(loop, cst.Call))
    return False


def _excludes(index: Index, one: cst.Call, other: cst.Call) -> bool:
    """Tell whether two calls stand in two branches of one condition, or the first leaves before."""
    above = {id(each) for each in index.ancestors(other)}
    for branch in index.ancestors(one):
        parent = index.parents.get(branch)
        if isinstance(branch, cst.IndentedBlock) and isinstance(parent, cst.If):
            if id(parent) in above:
                return id(branch) not in above
            last = branch.body[-1] if branch.body else None
            if isinstance(last, cst.SimpleStatementLine) and isinstance(
                last.body[-1], (cst.Return, cst.Raise, cst.Continue, cst.Break)
            ):
                return True
    return False


def _prepares(index: Index, after: cst.Call, before: cst.Call) -> bool:
    function = index.function(before) or index.module
    order = index.order
    calls = walk_for(function, cst.Call)
    return any(_is_preparing(each) and order[after] < order[each] < order[before] for each in calls)


def _is_preparing(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _PREPARES
