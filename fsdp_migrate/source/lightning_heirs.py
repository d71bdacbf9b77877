"""Classes of a project that derive from Lightning's FSDP1 strategy: its arguments stand where one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.findings import listed
from fsdp_migrate.source.python.heirs import STRATEGIES, hands_on, led_to
from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


OF_ITS_CLASS: Final = (
    "`{}` derives from FSDPStrategy: derive it from ModelParallelStrategy, and see what its methods do"
)
_HERE: Final = "the arguments of `{}`, line {}"
_ELSEWHERE: Final = "the arguments that `{}(...)` is given where it is called"
_PLACES: Final = 3


def heirs_made(source: Source) -> Iterator[tuple[cst.Call, re.Match[str], bool]]:
    """Yield the calls that make such strategies, with the class of Lightning's.

    And whether the class hands on what it is given, as it has no constructor of its own.
    """
    for call in source.calls:
        if not isinstance(call.func, (cst.Name, cst.Attribute)):
            continue
        own = source.index.qualified(call.func)
        matches = (STRATEGIES.match(name) for name in sorted(led_to(source.index, call.func) - own))
        match = next(filter(None, matches), None)
        if match is not None and not any(map(STRATEGIES.match, own)):
            yield call, match, hands_on(source.index, call.func)


def where_given(source: Source, base: cst.CSTNode) -> str | None:
    """Return where the arguments stand of a class that has the strategy as a base; None if it is no base."""
    above = source.index.parents[base]
    owner = source.index.parents.get(above) if isinstance(above, cst.Arg) else None
    if not isinstance(owner, cst.ClassDef) or above not in owner.bases:
        return None
    places = [
        _HERE.format("super().__init__(...)", source.position(each)[0])
        for each in walk_for(owner.body, cst.Call)
        if each.args and isinstance(each.func, cst.Attribute) and _is_constructor(each.func)
    ]
    places += [
        _HERE.format(f"{owner.name.value}(...)", source.position(call)[0])
        for call in source.calls
        if dotted(call.func) == owner.name.value and call.args
    ]
    return listed(places, _PLACES) if places else _ELSEWHERE.format(owner.name.value)


def _is_constructor(func: cst.Attribute) -> bool:
    whole = func.value
    return func.attr.value == "__init__" and isinstance(whole, cst.Call) and dotted(whole.func) == "super"
