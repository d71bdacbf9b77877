"""What kinds of things the arguments of public functions are: one check for each kind."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fsdp_migrate.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """A kind of argument: what to call it, and what tells it."""

    expected: str
    fits: Callable[[object], bool]

    def __or__(self, other: Kind) -> Kind:
        """Return the kind of what is one or the other."""
        return Kind(f"{self.expected}, or {other.expected}", lambda it: self.fits(it) or other.fits(it))


def _is_whole(value: object) -> bool:
    # numpy's integers too; a number of 400 digits is one that no machine can count to.
    try:
        return not isinstance(value, bool) and abs(operator.index(value)) < 2**63  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _is_numeral(value: object) -> bool:
    """Tell whether a text says a number, as what a command line gives does: ``"inf"``, ``"1.0"``."""
    try:
        return isinstance(value, str) and isinstance(float(value), float)
    except ValueError:
        return False


def _are_texts(value: object) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(each, str) for each in value)


def instance_of(*classes: type) -> Kind:
    """Return the kind of instances of these classes."""
    return Kind(" or ".join(f"a {each.__name__}" for each in classes), lambda it: isinstance(it, classes))


def whole_number_from(least: int, most: int | None = None) -> Kind:
    """Return the kind of whole numbers that are not below the least, nor above the most."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def fits(value: Any) -> bool:
        return _is_whole(value) and least <= value and (most is None or value <= most)

    return Kind(f"a whole number {bounds}", fits)


NOTHING: Final = Kind("None", lambda it: it is None)
FLAG: Final = Kind("True or False", lambda it: isinstance(it, bool) or (_is_whole(it) and it in {0, 1}))
WHOLE: Final = Kind("a whole number", _is_whole)
NUMBER: Final = Kind("a number", lambda it: hasattr(it, "__float__") and getattr(it, "ndim", 0) == 0)
NUMERAL: Final = Kind("a number", lambda it: NUMBER.fits(it) or _is_numeral(it))
TEXT: Final = instance_of(str)
TEXTS: Final = Kind("a list of texts", _are_texts)
PATH: Final = Kind("a path or a URL", lambda it: isinstance(it, (str, os.PathLike)))
FUNCTION: Final = Kind("a function", lambda it: callable(it) and not isinstance(it, type))
CALLABLE: Final = Kind("a function, or a class that is called like one", callable)
MAPPING: Final = Kind("a mapping", lambda it: isinstance(it, Mapping))
SEVERAL: Final = Kind(
    "several things, as in a list",
    lambda it: isinstance(it, Iterable) and not isinstance(it, (type, str)) and getattr(it, "ndim", 1) != 0,
)


def check_arguments(kind: Kind, **arguments: object) -> None:
    """Check that each argument is of that kind.

    Raises:
        ConfigError: One is of another kind; it is named, with what it is.

    Example:
        >>> check_arguments(WHOLE | NOTHING, world_size="8")
        Traceback (most recent call last):
        fsdp_migrate.errors.ConfigError: `world_size` is a str; expected a whole number, or None.
    """
    for name, value in arguments.items():
        if not kind.fits(value):
            raise ConfigError(f"`{name}` is {what_it_is(value)}; expected {kind.expected}.", field=name)


def what_it_is(value: object) -> str:
    """Say what a value is: a number, of which class, or which class itself.

    Example:
        >>> [what_it_is(value) for value in (-3, 10**30, "8", int)]
        ['-3', 'a whole number of more than 63 bits', 'a str', 'the class int']
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if type(value) is int:
        # Python refuses to write down a number of 5,000 digits.
        return str(value) if _is_whole(value) else "a whole number of more than 63 bits"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
