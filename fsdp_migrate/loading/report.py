"""What was loaded, and what there is to say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.findings import Finding


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What :func:`~fsdp_migrate.load_checkpoint` did, as this rank saw it.

    Attributes:
        source: Where the checkpoint lies.
        layout: How it is laid out, as ``fsdp-migrate inspect`` says it.
        values: What ``extra`` asked for, by its names; of an object with ``load_state_dict``, what it got.
        loaded: The names of the model that were loaded.
        missing: The names of the model that the checkpoint has not.
        states: How many parameters got optimizer state.
        nbytes: The bytes that this rank read or received.
        seconds: How long it took, from the call on.
        findings: What there is to say about it.
    """

    source: str
    layout: str
    values: Mapping[str, Any]
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    states: int
    nbytes: int
    seconds: float
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def gigabytes_per_second(self) -> float:
        """Return how fast it was, over all of the time that it took."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data; of the values only the names."""
        return {
            "source": self.source,
            "layout": self.layout,
            "values": sorted(self.values),
            "loaded": list(self.loaded),
            "missing": list(self.missing),
            "states": self.states,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "gigabytes_per_second": self.gigabytes_per_second,
            "findings": [finding.as_dict() for finding in self.findings],
        }
