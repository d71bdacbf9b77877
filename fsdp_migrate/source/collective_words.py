"""torch's collectives, and what is said of one that is given a sharded model's parameter or gradient."""

from __future__ import annotations

from typing import Final


COLLECTIVES: Final = frozenset(
    {
        "P2POp",
        "_broadcast_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_reduce",
        "all_reduce_coalesced",
        "all_reduce_multigpu",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "gather",
        "irecv",
        "isend",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "send",
    }
)
# Those that write what they give into what they are given.
_WRITE_INTO: Final = frozenset(
    {
        *("_broadcast_coalesced", "all_reduce", "all_reduce_coalesced", "all_reduce_multigpu", "broadcast"),
        *("irecv", "recv", "reduce"),
    }
)

INTO: Final = (
    "this is a DTensor now, which collectives do not take: give it .to_local(), this rank's part, into which "
    "it writes. The whole that a DTensor gathers is a copy, and what is written into that is lost."
)
COLLECTIVE: Final = (
    "this is a DTensor now, which collectives do not take: give them .to_local(), or take .full_tensor(), "
    "which is the same on each rank."
)


def said_of_collective(name: str) -> str:
    """Return what is said of a collective that is given a DTensor.

    Example:
        >>> said_of_collective("all_reduce") == INTO, said_of_collective("send") == COLLECTIVE
        (True, True)
    """
    return INTO if name in _WRITE_INTO else COLLECTIVE
