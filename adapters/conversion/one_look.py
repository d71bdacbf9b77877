"""Answers about a project that are kept while many of its files are looked at, and nothing is written."""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_P = ParamSpec("_P")
_T = TypeVar("_T")
_KEPT: ContextVar[dict[object, object] | None] = ContextVar("_KEPT", default=None)


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """Keep what functions of :func:`kept_in_a_look` answer until the end of the block, the outermost one."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept_in_a_look(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that works the same thing out once in a look, and outside of one each time.

    Its arguments can be hashed, and nobody changes what it returns.
    """

    @functools.wraps(function)
    def asked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        kept = _KEPT.get()
        if kept is None:
            return function(*args, **kwargs)
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in kept:
            kept[key] = function(*args, **kwargs)
        return cast("_T", kept[key])

    return asked
