"""Whether every rank has given its Trainer the callback: those that have not would wait for those that have.

A rank without it runs FSDP1's collectives, the others run ours. So ranks say what they have in the store of
the process group, which needs no answer, before the first collective. One that has no callback says so as
well, since it has this module: scripts import the callback on every rank.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.torch_compat.process_groups import default_store


if TYPE_CHECKING:
    from collections.abc import Iterator


_trainers = itertools.count()
"""Numbers the Trainers of this process, which all ranks make in the same order."""


def require_on_every_rank() -> None:
    """Say that this rank's Trainer has the callback, and wait until every rank has said what it has.

    Raises:
        ConfigError: A rank has none, or says nothing.
    """
    if not _needs_agreement():
        return
    store, key = default_store(), _key()
    # The last one to count itself speaks for all. A rank that has none writes the same key.
    if store.add(f"{key}/with", 1) == dist.get_world_size():
        store.set(f"{key}/said", "all")
    try:
        said = store.get(f"{key}/said").decode()
    except RuntimeError as error:  # what stores raise when their time is over
        raise ConfigError(_text("a rank that says nothing"), field="callbacks") from error
    if said != "all":
        raise ConfigError(_text(f"rank {said}"), field="callbacks")


@contextmanager
def tell_of_absence() -> Iterator[None]:
    """Surround the sharding of a Trainer without the callback: say so, and explain what comes of it.

    Raises:
        ConfigError: Another rank's Trainer has the callback.
    """
    if not _needs_agreement():
        yield
        return
    store, key = default_store(), _key()
    store.set(f"{key}/said", str(dist.get_rank()))
    _refuse(store, key)
    try:
        yield
    except Exception as error:
        _refuse(store, key, error)
        raise


def _needs_agreement() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _key() -> str:
    return f"fsdp_migrate/composer/{next(_trainers)}"


def _refuse(store: dist.Store, key: str, cause: Exception | None = None) -> None:
    try:
        # To add nothing reads the counter: `get` would wait for a key that nobody may set.
        others = store.add(f"{key}/with", 0)
    except RuntimeError:  # the store has gone with the rank that held it
        return
    if others:
        raise ConfigError(_text(f"rank {dist.get_rank()}"), field="callbacks") from cause


def _text(who: str) -> str:
    return (
        f"Not every rank's Trainer has the FSDP2Migration callback: {who} has none, and others have it. Give "
        "it to the Trainer of every rank."
    )
