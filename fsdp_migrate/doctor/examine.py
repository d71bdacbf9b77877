"""Goes through the table of known faults, and says which of them are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.doctor.faults import FAULTS


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.doctor.known import KnownFault, LooksAt
    from fsdp_migrate.doctor.sight import Sight


@dataclass(frozen=True)
class Symptom:
    """A known fault that is there, and what was seen of it."""

    fault: KnownFault
    seen: str

    def as_dict(self) -> dict[str, Any]:
        """Return the symptom as it stands in JSON."""
        fault = self.fault
        return {
            "name": fault.name,
            "says": fault.says,
            "seen": self.seen,
            "action": fault.action,
            "versions": fault.versions,
            "looks_at": fault.looks_at,
            "link": fault.link,
            "url": fault.url,
            "looked_up": fault.looked_up,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor saw: which faults are there, what was looked at, and how many faults are known."""

    symptoms: tuple[Symptom, ...]
    looked_at: tuple[LooksAt, ...]
    num_looked_for: int
    num_known: int
    versions: Mapping[str, str]
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as it stands in JSON."""
        return {
            "symptoms": [each.as_dict() for each in self.symptoms],
            "looked_at": list(self.looked_at),
            "num_looked_for": self.num_looked_for,
            "num_known": self.num_known,
            "versions": dict(self.versions),
            "problem": self.problem,
        }


def examine(sight: Sight, faults: Iterable[KnownFault] = FAULTS) -> Diagnosis:
    """Return the known faults that are there.

    Example:
        >>> from fsdp_migrate.doctor import Sight
        >>> sight = Sight(sources={"train.py": "copy = deepcopy(model)"})
        >>> [each.fault.name for each in examine(sight).symptoms]
        ['deepcopy-of-shards']
    """
    every = tuple(faults)
    looked_at = what_is_there(sight)
    wanted = [each for each in every if each.looks_at in looked_at]
    symptoms = (Symptom(each, seen) for each in wanted if (seen := _see(each, sight)))
    return Diagnosis(tuple(symptoms), looked_at, len(wanted), len(every), sight.versions, sight.problem)


def what_is_there(sight: Sight) -> tuple[LooksAt, ...]:
    """Return what there is to look at."""
    given: dict[LooksAt, bool] = {
        "environment": True,
        "config": sight.config is not None,
        "model": sight.model is not None,
        "checkpoint": sight.manifest is not None,
        "sources": bool(sight.sources),
    }
    return tuple(name for name, is_there in given.items() if is_there)


def _see(fault: KnownFault, sight: Sight) -> str:
    for affected in fault.affects:
        version = sight.versions.get(affected.package)
        if version is None or not affected.covers(version):
            return ""
    return fault.sees(sight)
