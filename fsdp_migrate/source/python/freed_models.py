"""Where an Accelerator has forgotten its models before it is asked something of one.

``Accelerator.free_memory()``, and ``clear()``, which calls it, empty the list of the models that it prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.nodes import last_name, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterable

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
    forgets = [each for each in source.calls if _is_of_the_same(each, call)]
    if not forgets:
        return False
    asks = _with_callers(source, call)
    places = {id(place): place for each in forgets for place in _with_callers(source, each)}
    return any(_comes_first(source, place, at) for place in places.values() for at in asks)


def _is_of_the_same(call: cst.Call, other: cst.Call) -> bool:
    """Tell whether a call forgets the models of the object that another asks, by its last name."""
    func, asked = call.func, other.func
    if not (isinstance(func, cst.Attribute) and isinstance(asked, cst.Attribute)):
        return False
    return func.attr.value in _FORGETS and last_name(func.value) == last_name(asked.value) != ""


def _with_callers(source: Source, call: cst.Call) -> list[cst.Call]:
    """Return a call, and those of this source that come to it: by the last names of functions."""
    found, names = [call], set()
    for each in found:  # which grows meanwhile
        function = source.index.function(each)
        name = function.name.value if function is not None else ""
        if name and name not in names:
            names.add(name)
            found += [other for other in source.calls if _word(other) == name and other is not each]
    return found


def _word(call: cst.Call) -> str:
    """Return what is called by its last word, whatever it is asked of: ``Run(model).train()``."""
    func = call.func
    return func.attr.value if isinstance(func, cst.Attribute) else last_name(func)


def _comes_first(source: Source, forgets: cst.Call, asks: cst.Call) -> bool:
    """Tell whether one call runs before another of its function, and no models are prepared in between."""
    index = source.index
    if index.function(forgets) is not index.function(asks):
        return False
    above = {id(each) for each in index.ancestors(asks)}
    # What leads to both may prepare them first: a run that is begun anew in each round of a loop.
    between = [asks] if asks is forgets else []
    first, last = index.order[forgets], index.order[asks]
    if first < last and not index.excludes(forgets, asks) and not _leaves_before(index, forgets, above):
        between += [each for each in source.calls if first < index.order[each] < last]
        return not _prepare(source, between)
    loops = (each for each in index.ancestors(forgets) if isinstance(each, _LOOPS) and id(each) in above)
    loop = next(loops, None)
    return loop is not None and not _prepare(source, [*walk_for(loop, cst.Call), *between])


def _leaves_before(index: Index, node: cst.CSTNode, above: set[int]) -> bool:
    """Tell whether the block around a node is left at its end, and what is ``above`` another is not in it."""
    blocks = (each for each in index.ancestors(node) if isinstance(each, cst.IndentedBlock))
    return any(id(each) not in above and leaves(each) for each in blocks)


def _prepare(source: Source, calls: Iterable[cst.Call]) -> bool:
    """Tell whether any of some calls prepares models, or a function of this source that they come to."""
    functions: dict[str, list[cst.Call]] = {}
    for each in source.index.by_kind.get(cst.FunctionDef, ()):
        name = cst.ensure_type(each, cst.FunctionDef).name.value
        functions.setdefault(name, []).extend(walk_for(each, cst.Call))
    found = list(calls)
    for each in found:  # which grows meanwhile
        if _word(each) in _PREPARES and isinstance(each.func, cst.Attribute):
            return True
        found += functions.pop(_word(each), [])
    return False
