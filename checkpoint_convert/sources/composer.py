"""Composer's sharded checkpoints: per ``ep{e}-ba{b}/``, a distributed one of ``state.*`` and ``rng.*``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path


_STATE: Final = "state"
# What Composer's State and Trainer write beside the model; one of them tells it from somebody's own `state`.
_OWN: Final = frozenset(
    {
        "algorithms",
        "callbacks",
        "dataset_state",
        "integrations",
        "metadata",
        "rank_zero_seed",
        "run_name",
        "schedulers",
        "timestamp",
    }
)


def composer_evidence(paths: Iterable[Path]) -> str | None:
    """Say by which entries a checkpoint is Composer's, or return None.

    Example:
        >>> composer_evidence([("state", "model", "up.weight"), ("state", "run_name")])
        'it holds `state.model` and `state.run_name`'
        >>> composer_evidence([("model", "up.weight")])
    """
    seconds = {str(path[1]) for path in paths if len(path) > 1 and path[0] == _STATE}
    own = sorted(seconds & _OWN)
    if "model" not in seconds or not own:
        return None
    return f"it holds `state.model` and `state.{own[0]}`"
