"""Functions that are handed over with what they are called with: partials, threads, pools, processes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.argument_places import named_arguments
from fsdp_migrate.source.python.held import item, taken


if TYPE_CHECKING:
    from collections.abc import Callable


_PARTIALS: Final = frozenset({"partial", "partialmethod"})
_BY_PLACE: Final = {"submit": 0, "to_thread": 0, "run_in_executor": 1}
"""What is given a function at a place, and behind it what that is called with."""
_IN_A_TUPLE: Final = {
    "Process": 0,
    "Thread": 0,
    "apply_async": 0,
    "Timer": 0,
    "spawn": 1,
    "start_processes": 1,
}
"""What is given a function and ``args=(...)``, and how many arguments come before these."""
_MOST: Final = 12


class Handed(NamedTuple):
    """A function, and what it will be called with, by place and by name."""

    func: ast.expr
    given: list[set[str]]
    named: dict[str, set[str]]


def is_partial(call: ast.Call) -> bool:
    """Tell whether a call makes a partial of something.

    Example:
        >>> is_partial(ast.parse("functools.partial(get, size=2)", mode="eval").body)
        True
    """
    return bool(call.args) and last_name(call.func) in _PARTIALS


def handed_over(call: ast.Call, kinds: Callable[[ast.expr], set[str]]) -> Handed | None:
    """Return the function that a call hands over, and what that will be called with."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else (dotted(call.func) or "")
    is_first = name in _PARTIALS or dotted(call.func) == "atexit.register"
    place = 0 if is_first else _BY_PLACE.get(name)
    if place is not None and len(call.args) > place:
        given = [kinds(each) for each in call.args[place + 1 :] if not isinstance(each, ast.Starred)]
        by_name = {each: kinds(value) for each, value in named_arguments(call).items()}
        return Handed(call.args[place], given, by_name)
    if name not in _IN_A_TUPLE:
        return None
    told = named_arguments(call)
    placed = call.args[1:] if name == "Timer" else call.args  # behind the time after which it is called
    named_func = next((told[each] for each in ("target", "fn", "func", "function") if each in told), None)
    func = named_func or next(iter(placed), None)
    args, others = told.get("args", next(iter(placed[1:2]), None)), told.get("kwds")
    others = others or told.get("kwargs")
    if func is None or (args is None and others is None):
        return None
    held = kinds(args) if args is not None else set()
    given = [set[str]() for _ in range(_IN_A_TUPLE[name])]
    given += [taken(str(number), held) for number in range(_MOST)]
    named = {}
    for each in others.keys if isinstance(others, ast.Dict) else ():
        text = each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else None
        if text is not None and others is not None:
            named[text] = taken(item(text), kinds(others))
    return Handed(func, given, named)
