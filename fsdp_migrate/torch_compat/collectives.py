"""FSDP2's collectives, watched: told of before they are prepared, and before they are sent.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is replaced here was checked on 2.6, 2.7, 2.9, 2.13 and 2.15.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch.distributed as dist

from fsdp_migrate.torch_compat.fsdp2 import fsdp2_internals


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


CollectiveKind = Literal["all-gather", "reduction"]

# What FSDP2 calls, up to 2.9 and later.
_COLLECTIVES = frozenset(
    {
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
    }
)


class CollectiveWatcher(Protocol):
    """Who is told of the collectives of some parameter groups, before they are done."""

    def before_allocating(self, kind: CollectiveKind, parameters: Sequence[Any]) -> bool:
        """Hear of a collective that will be prepared; return whether it is one of the watched."""

    def before_sending(self) -> None:
        """Hear that it is prepared, so that nothing but the sending is left. May raise."""


_watchers: list[CollectiveWatcher] = []
_sending: list[CollectiveWatcher] = []


@contextmanager
def watch_collectives(watcher: CollectiveWatcher) -> Iterator[None]:
    """Tell ``watcher`` of every collective of FSDP2, in the order in which this rank does them.

    FSDP2's two functions that prepare and do a collective are replaced while something watches, and what
    they call of ``torch.distributed``. Without a watcher nothing is replaced.
    """
    if not _watchers:
        _install()
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        _sending.clear()
        if not _watchers:
            _uninstall()


_originals: dict[str, Any] = {}


def _install() -> None:
    groups, collectives = fsdp2_internals("_fsdp_param_group"), fsdp2_internals("_fsdp_collectives")
    # `_fsdp_param_group` has imported both by name: in the module that defines them nobody would see a
    # change.
    kinds: dict[str, CollectiveKind] = {"foreach_all_gather": "all-gather", "foreach_reduce": "reduction"}
    for name, kind in kinds.items():
        _originals[name] = getattr(groups, name)
        setattr(groups, name, _watched(_originals[name], kind))
    # Of that module alone: what the model's own forward sends by `torch.distributed` is not FSDP2's affair.
    _originals["dist"] = collectives.dist
    collectives.dist = _WatchedDistributed()


def _uninstall() -> None:
    groups = fsdp2_internals("_fsdp_param_group")
    for name in ("foreach_all_gather", "foreach_reduce"):
        setattr(groups, name, _originals.pop(name))
    fsdp2_internals("_fsdp_collectives").dist = _originals.pop("dist")


def _watched(function: Callable[..., Any], kind: CollectiveKind) -> Callable[..., Any]:
    def watched(parameters: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        watching = [watcher for watcher in _watchers if watcher.before_allocating(kind, parameters)]
        _sending[:] = watching
        try:
            named = {name: _told(value) for name, value in kwargs.items()}
            return function(parameters, *map(_told, args), **named)
        finally:
            _sending.clear()

    return watched


class _WatchedDistributed:
    """``torch.distributed``, of which the first collective in each of FSDP2's functions is told."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(dist, name)
        if name not in _COLLECTIVES:
            return value

        def collective(*args: Any, **kwargs: Any) -> Any:
            _tell_of_sending()
            return value(*args, **kwargs)

        return collective


def _tell_of_sending() -> None:
    watching = list(_sending)
    _sending.clear()  # an all-reduce that follows a reduce-scatter allocates nothing
    for watcher in watching:
        watcher.before_sending()


def _told(value: Any) -> Any:
    """Return a user's own collective (torch 2.9: ``set_custom_all_gather``) as one that is told of, too."""
    # torch's own objects stand in the module whose `dist` is replaced, and are told of by that.
    torchs = fsdp2_internals("_fsdp_collectives").__name__
    return _OwnCollective(value) if _is_collective(value) and type(value).__module__ != torchs else value


def _is_collective(value: Any) -> bool:
    return callable(value) and hasattr(value, "allocate")


class _OwnCollective:
    """A collective of the user's, which need not go through what FSDP2 imports."""

    def __init__(self, collective: Any) -> None:
        self._collective = collective

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collective, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _tell_of_sending()
        return self._collective(*args, **kwargs)
