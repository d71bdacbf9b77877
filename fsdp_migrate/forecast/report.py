"""What was foretold: plain data, as it stands in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """What a rank holds on its device at the moment when it holds most.

    ``parts`` are bytes by what they are for: ``parameters``, ``gradients`` and ``optimizer_state`` as they are
    sharded, ``gathered`` units with the buffers and casts of gathering, ``reducing`` for whole gradients and
    the buffers that reduce them, ``buffers``, ``inputs``, ``activations`` for all else that forward and
    backward make, ``temporary`` for what the optimizer takes while it steps. ``phase`` is when.
    ``at_rest`` is held between steps, ``on_host`` beside that in the host's memory, of ``cpu_offload``.
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
    ``counts_activations``: False where no forward could be run, so that ``parts`` has none and the peak is a
    sum of parts. ``limit`` is the bytes that it is held against.
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
        """Tell whether a peak is below the limit; without activations it is not known where it fits so far."""
        if self.limit is None or peak is None:
            return None
        if peak.total > self.limit:
            return False
        return True if self.counts_activations else None

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
