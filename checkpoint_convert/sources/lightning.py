"""Lightning's checkpoints: a distributed one with ``meta.pt`` beside it, of FSDPStrategy and Fabric alike."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping


def lightning_evidence(files: Mapping[str, int], tops: set[object]) -> str | None:
    """Say why a distributed checkpoint is one of Lightning, or return None.

    Example:
        >>> lightning_evidence({"meta.pt": 1}, {"model", "optimizer_0"})
        'there is a `meta.pt` beside it'
    """
    if "meta.pt" in files and tops & {"model", "state_dict"}:
        return "there is a `meta.pt` beside it"
    return None
