"""What was foretold: plain data, as it stands in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator


PARTS = {
    "parameters": "parameters, sharded",
    "gradients": "gradients, sharded",
    "optimizer_state": "optimizer state",
    "gathered": "gathered units",
    "reducing": "whole gradients, and their reduction",
    "buffers": "buffers",
    "inputs": "inputs",
    "activations": "activations",
    "temporary": "what the optimizer takes while it steps",
}
"""The parts of a peak, and their names for people."""


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """What a rank holds on its device at the moment when it holds most.

    ``parts`` are bytes by what they are for: ``parameters``, ``gradients`` and ``optimizer_state`` as they
    are sharded, ``gathered`` units with the buffers and casts of gathering, ``reducing`` for whole gradients
    and the buffers that reduce them, ``buffers``, ``inputs``, ``activations`` for all else that forward and
    backward make, ``temporary`` for what the optimizer takes while it steps. ``phase`` is when. ``at_rest``
    is held between steps, ``on_host`` beside that in the host's memory, of ``cpu_offload``.
    """

    phase: str
    parts: dict[str, int]
    at_rest: int
    on_host: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """The peak of memory of the rank that holds most, under FSDP1 and under FSDP2.

    A peak is None where that one could not be foretold; ``notes`` say why, and what else is not known.
    ``counts_activations``: False where no forward could be run, so that ``parts`` has none and the peak is
    a sum of parts. ``limit`` is the bytes that it is held against.
    """

    fsdp1: PeakMemory | None
    fsdp2: PeakMemory | None
    counts_activations: bool
    world_size: int
    optimizer: str
    microbatches: int
    notes: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def fits(self) -> bool | None:
        """Whether it fits under FSDP2; None where that is not known, or no limit was given."""
        return self.fits_under(self.fsdp2)

    def fits_under(self, peak: PeakMemory | None) -> bool | None:
        """Tell whether a peak is below the limit; without activations it is not known where it is so far."""
        if self.limit is None or peak is None:
            return None
        if peak.total > self.limit:
            return False
        return True if self.counts_activations else None

    @property
    def peaks(self) -> tuple[tuple[str, PeakMemory | None], ...]:
        """Both peaks, with whose they are."""
        return ("FSDP1", self.fsdp1), ("FSDP2", self.fsdp2)

    def rows(self) -> Iterator[tuple[str, tuple[int | None, ...]]]:
        """Yield what a table says: a name, and bytes under FSDP1 and FSDP2; None where they are not known."""
        both = (self.fsdp1, self.fsdp2)
        for part, title in PARTS.items():
            if any(peak is not None and part in peak.parts for peak in both):
                yield title, tuple(None if peak is None else peak.parts.get(part, 0) for peak in both)
        title = "all at the peak" if self.counts_activations else "all but activations"
        yield title, tuple(None if peak is None else peak.total for peak in both)
        yield "between steps", tuple(None if peak is None else peak.at_rest for peak in both)
        if any(peak is not None and peak.on_host for peak in both):
            yield "in the host's memory", tuple(None if peak is None else peak.on_host for peak in both)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast as plain JSON data."""
        return {
            **asdict(self),
            "fsdp1": _peak_as_dict(self.fsdp1),
            "fsdp2": _peak_as_dict(self.fsdp2),
            "notes": list(self.notes),
            "fits": self.fits,
        }


def _peak_as_dict(peak: PeakMemory | None) -> dict[str, Any] | None:
    return None if peak is None else {"total": peak.total, **asdict(peak)}
