"""What calls of Python's own functions give, where they are given what holds FSDP1 models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.held import (
    EACH,
    ITEM,
    VALUE,
    attribute,
    entered,
    held,
    item,
    of_dict,
    put,
    taken,
)


if TYPE_CHECKING:
    from collections.abc import Callable


_LISTS = frozenset({"ModuleList", "cycle", "deque", "frozenset", "iter", "list", "set", "tuple"})
# Objects that have what they are given by name as attributes, and some as items too.
_NAMESPACES = frozenset(
    {"AttrDict", "Box", "Bunch", "DotDict", "EasyDict", "Munch", "Namespace", "SimpleNamespace"}
)
_ENTERS = frozenset({"enter_async_context", "enter_context"})
_METHODS = _ENTERS | {"_replace", "copy", "get", "items", "pop", "popleft", "setdefault", "values"}


@dataclass
class Given:
    """What a call is given: kinds by place and by name, and the text that an argument is, by its place.

    What ``**parts`` holds is given by name, too.
    """

    placed: list[set[str]] = field(default_factory=list)
    named: list[tuple[str, set[str]]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)


def of_function(name: str, given: Given) -> set[str]:
    """Return what a function or a class gives that is no project's own, by its name.

    Example:
        >>> of_function("enumerate", Given([{"each>fsdp"}]))
        {'each>1>fsdp'}
    """
    if name in _NAMESPACES:
        return {k for key, kinds in given.named for k in put(attribute(key), kinds) | put(item(key), kinds)}
    if _makes_dict(name):
        inside = held(given.placed[0]) if given.placed else set()
        named = {kind for key, kinds in given.named for kind in put(item(key), kinds)}
        return named | of_dict(inside) | put(VALUE, taken("1", taken(EACH, inside)))
    makes = _MAKERS.get(name)
    return makes(given) if makes is not None and given.placed else set()


def is_known(name: str) -> bool:
    """Tell whether a function, a class or a method of a name may give what something holds.

    Example:
        >>> is_known("items"), is_known("forward")
        (True, False)
    """
    return name in _MAKERS or name in _METHODS or name in _NAMESPACES or _makes_dict(name)


def _makes_dict(name: str) -> bool:
    """Tell whether a dict is made, ``ModuleDict(...)``: ``optim_state_dict(model=m)`` gives a state."""
    return name.lower().endswith("dict") and not name.endswith("state_dict")


def _zipped(given: Given) -> set[str]:
    pairs = (put(str(place), taken(EACH, kinds)) for place, kinds in enumerate(given.placed))
    return put(EACH, set().union(*pairs))


def _attribute_of(given: Given) -> set[str]:
    return taken(attribute(given.texts[1]), given.placed[0]) if 1 in given.texts else set()


_MAKERS: dict[str, Callable[[Given], set[str]]] = {
    **dict.fromkeys(_LISTS, lambda given: held(given.placed[0])),
    **dict.fromkeys(("reversed", "sorted"), lambda given: put(EACH, taken(EACH, given.placed[0]))),
    "chain": lambda given: put(EACH, {kind for kinds in given.placed for kind in taken(EACH, kinds)}),
    "enumerate": lambda given: put(EACH, put("1", taken(EACH, given.placed[0]))),
    "filter": lambda given: put(EACH, taken(EACH, given.placed[-1])),
    "getattr": _attribute_of,
    "next": lambda given: taken(EACH, given.placed[0]),
    "replace": lambda given: replaced(given.placed[0], given),
    "zip": _zipped,
}


def of_method(name: str, receiver: set[str], given: Given) -> set[str]:
    """Return what a method of a list, a dict or a named tuple gives of what that holds."""
    if name == "values":
        return put(EACH, taken(VALUE, receiver))
    if name == "items":
        return put(EACH, put("1", taken(VALUE, receiver)))
    if name == "copy":
        return held(receiver)
    if name in {"get", "pop", "setdefault"} and given.placed:
        return taken(item(given.texts[0]) if 0 in given.texts else ITEM, receiver)
    if name in {"pop", "popleft"}:
        return taken(EACH, receiver)
    if name in _ENTERS:
        return entered(given.placed[0]) if given.placed else set()
    return replaced(receiver, given) if name == "_replace" else set()


def replaced(before: set[str], given: Given) -> set[str]:
    """Return what an object holds, some of whose fields are replaced: ``replace(state, model=model)``."""
    steps = tuple(f"{attribute(name)}>" for name, _ in given.named)
    if not steps:
        return set()
    found = {kind for kind in held(before) if not kind.startswith(steps)}
    return found | {kind for name, kinds in given.named for kind in put(attribute(name), kinds)}
