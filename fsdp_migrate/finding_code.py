"""One row of the table of codes of findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


Fidelity = Literal["exact", "equivalent", "obsolete", "changed", "refused"]
"""How faithfully FSDP2 does what was asked.

``exact``: the same. ``equivalent``: another mechanism for the same; its text says what may differ.
``obsolete``: FSDP2 needs no such option. ``changed``: something that a user could notice differs.
``refused``: cannot be migrated.
"""


@dataclass(frozen=True)
class FindingCode:
    """One row of the table of codes: its fidelity and, in one line, what it says."""

    fidelity: Fidelity
    summary: str
