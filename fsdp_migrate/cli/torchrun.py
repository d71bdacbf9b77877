"""The command under torchrun: several processes run it at once, and one of them speaks."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert import Ranks


_joined: list[Ranks] = []


def is_shared() -> bool:
    """Tell whether torchrun started several of this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_quiet() -> bool:
    """Tell whether another process speaks for this one: rank 0, unless it is gone."""
    if _joined:
        return not _joined[-1].speaks
    return is_shared() and os.environ.get("RANK", "0") != "0"


@contextlib.contextmanager
def shared_ranks() -> Iterator[Ranks | None]:
    """Yield the ranks that share the work; None where this process is alone."""
    if not is_shared():
        yield None
        return
    from fsdp_migrate.checkpoint_convert import join_ranks

    _joined.append(join_ranks())
    with _joined[-1] as ranks:
        yield ranks


def dismiss() -> None:
    """Let the other ranks end, once this one has said what went wrong."""
    if _joined and not is_quiet():
        _joined[-1].dismiss()
