"""Lightning's checkpoints, of FSDPStrategy and Fabric alike: a folder with ``meta.pt``, or one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Mapping, Set as AbstractSet


# What Lightning's Trainer writes beside `state_dict`; one of them tells it from somebody's own file.
_OWN: Final = frozenset({"optimizer_states", "pytorch-lightning_version"})


def folder_evidence(files: Mapping[str, int], tops: AbstractSet[object]) -> str | None:
    """Say why a distributed checkpoint is one of Lightning, or return None.

    Example:
        >>> folder_evidence({"meta.pt": 1}, {"model", "optimizer_0"})
        'there is a `meta.pt` beside it'
        >>> folder_evidence({"meta.pt": 1}, {"model", "optimizer"})  # somebody's own: theirs are numbered
    """
    if "meta.pt" in files and tops & {"model", "state_dict"} and "optimizer" not in tops:
        return "there is a `meta.pt` beside it"
    return None


def file_evidence(tops: AbstractSet[object]) -> str | None:
    """Say why a state is one that Lightning's Trainer saved, or return None.

    Example:
        >>> file_evidence({"state_dict", "epoch", "optimizer_states"})
        'it holds `state_dict` and `optimizer_states`'
    """
    own = sorted(map(str, tops & _OWN))
    return f"it holds `state_dict` and `{own[0]}`" if "state_dict" in tops and own else None
