"""Goes through the table of known faults, and says which of them are there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate.doctor.faults import FAULTS
from fsdp_migrate.doctor.framework_faults import FRAMEWORK_FAULTS
from fsdp_migrate.doctor.known import HARMS
from fsdp_migrate.versions import version_numbers


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.doctor.known import KnownFault, LooksAt
    from fsdp_migrate.doctor.sight import Sight
    from fsdp_migrate.source.pins import ExactPin


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
            "harm": fault.harm,
            "is_handled": fault.is_handled,
            "link": fault.link,
            "url": fault.url,
            "looked_up": fault.looked_up,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor saw: which faults are there, what was looked at, and how many faults are known.

    ``symptoms`` begin with what needs action, the worst first, and end with what ``prepare_fully_shard``
    handles. ``pinned`` are requirements for another version than is installed here, and not too old.
    """

    symptoms: tuple[Symptom, ...]
    looked_at: tuple[LooksAt, ...]
    num_looked_for: int
    num_known: int
    versions: Mapping[str, str]
    problem: str = ""
    pinned: tuple[ExactPin, ...] = ()

    @property
    def needed(self) -> tuple[Symptom, ...]:
        """What needs action."""
        return tuple(each for each in self.symptoms if not each.fault.is_handled)

    @property
    def handled(self) -> tuple[Symptom, ...]:
        """What ``prepare_fully_shard`` takes care of."""
        return tuple(each for each in self.symptoms if each.fault.is_handled)

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as it stands in JSON."""
        return {
            "symptoms": [each.as_dict() for each in self.symptoms],
            "looked_at": list(self.looked_at),
            "num_looked_for": self.num_looked_for,
            "num_known": self.num_known,
            "versions": dict(self.versions),
            "problem": self.problem,
            "pinned": [asdict(each) for each in self.pinned],
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
    # A requirement that keeps FSDP2 out is a fault of its own; what its version does is not asked then.
    without = {pin.package for pin in sight.pins}
    pinned = tuple(pin for pin in _pinned(sight) if pin.package not in without)
    symptoms = [Symptom(each, seen) for each in wanted if (seen := _see_here_or_there(each, sight, pinned))]
    symptoms.sort(key=lambda each: (each.fault.is_handled, list(HARMS).index(each.fault.harm)))
    counts = len(wanted), len(every)
    return Diagnosis(tuple(symptoms), looked_at, *counts, sight.versions, sight.problem, pinned)


def stops_in_framework(sight: Sight) -> str:
    """Say at what a framework's own FSDP2 stops, or what it spoils, with a model; or nothing.

    ``prepare_fully_shard``, which a plan and a comparison are of, does neither.
    """
    named = FRAMEWORK_FAULTS if sight.model is not None else ()
    wanted = (each for each in named if each.looks_at == "model")
    found = examine(sight, wanted).symptoms
    if not found:
        return ""
    seen = "; ".join(f"{each.fault.name}, {HARMS[each.fault.harm]} ({each.seen})" for each in found)
    return (
        f"The framework's own FSDP2 does not run this model as FSDP1 did: {seen}. `fsdp-migrate doctor` says "
        "what to do, with the same --model and --config."
    )


def _pinned(sight: Sight) -> tuple[ExactPin, ...]:
    """Return the exact requirements that are not met here; the first for each package."""
    first = {pin.package: pin for pin in reversed(sight.exact_pins)}
    return tuple(
        pin
        for package, pin in sorted(first.items())
        if (here := sight.versions.get(package)) is None or not _is_the_same(here, pin.version)
    )


def _is_the_same(version: str, pinned: str) -> bool:
    numbers = version_numbers(pinned)
    return version_numbers(version)[: len(numbers)] == numbers


def _see_here_or_there(fault: KnownFault, sight: Sight, pinned: tuple[ExactPin, ...]) -> str:
    """Look for a fault in the versions that are installed here, and in those that the repository asks for."""
    if seen := _see(fault, sight):
        return seen
    theirs = replace(sight, versions={**sight.versions, **{pin.package: pin.version for pin in pinned}})
    if pinned and (seen := _see(fault, theirs)):
        named = (f"{pin.package} {pin.version} of {pin.path}:{pin.line}" for pin in pinned)
        return f"{seen}, with {' and '.join(named)}"
    return ""


def what_is_there(sight: Sight) -> tuple[LooksAt, ...]:
    """Return what there is to look at."""
    given: dict[LooksAt, bool] = {
        "environment": True,
        "config": sight.config is not None,
        "model": sight.model is not None,
        "checkpoint": sight.manifest is not None,
        "sources": bool(sight.sources or sight.pins),
    }
    return tuple(name for name, is_there in given.items() if is_there)


def _see(fault: KnownFault, sight: Sight) -> str:
    for affected in fault.affects:
        version = sight.versions.get(affected.package)
        if version is None or not affected.covers(version):
            return ""
    return fault.sees(sight)
