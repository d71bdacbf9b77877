"""What a comparison of FSDP1 with FSDP2 found: plain data, as it stands in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.findings import Finding, counted
from fsdp_migrate.parity.tensors import Gap, json_number
from fsdp_migrate.sharding.units import UnitSummary


if TYPE_CHECKING:
    from collections.abc import Iterator


Stage = Literal[
    "units",
    "ties",
    "used in forward",
    "output",
    "order of modules",
    "loss",
    "recomputed",
    "gradient",
    "optimizer group",
    "parameter",
    "optimizer state",
    "buffer",
]
"""What was compared, in the order in which a step comes to it."""

NOT_EXPLAINED = "not explained by any finding"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs: what of which module, at which step (0: before the first), on which rank.

    ``name`` is a parameter, a buffer, an optimizer state or a module; ``module`` the module that it is in.
    ``clue`` is what the numbers themselves tell of the cause. ``explained_by`` is the code of a finding of
    the plan, or "" where none explains it, and ``explanation`` says which, or why not.
    """

    step: int
    stage: Stage
    name: str
    module: str
    rank: int
    gap: Gap
    clue: str = ""
    explained_by: str = ""
    explanation: str = NOT_EXPLAINED

    @property
    def is_explained(self) -> bool:
        """Whether a finding explains it."""
        return bool(self.explained_by)

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as it stands in JSON."""
        return {**asdict(self), "gap": self.gap.as_dict()}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What a rank sent of one kind in a step: how often, and how many bytes."""

    kind: str
    dtype: str
    group_size: int
    calls: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step cost a rank under one of the two. ``peak_bytes`` is None where no allocator tells it."""

    seconds: float
    collectives: tuple[Collective, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step under both: the loss of each, averaged over the ranks, what was compared, and the costs.

    ``compared`` counts tensors by stage, ``different`` those of them that differ. Costs are of the rank whose
    report this is: rank 0.
    """

    number: int
    fsdp1_loss: float
    fsdp2_loss: float
    compared: dict[str, int]
    different: dict[str, int]
    fsdp1: Cost
    fsdp2: Cost

    def as_dict(self) -> dict[str, Any]:
        """Return the step as it stands in JSON, where no number is infinite."""
        losses = {name: json_number(getattr(self, name)) for name in ("fsdp1_loss", "fsdp2_loss")}
        return {**asdict(self), **losses}


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """What a comparison found. ``first`` is where the runs part first, in the order of the work.

    ``num_rounded`` counts the tensors that differ by no more than rounding can make them differ, where that
    was allowed for; they are no differences. ``units`` are the names of FSDP2's units, and
    ``unit_summaries`` says of each how large it is.
    """

    world_size: int
    device: str
    torch_version: str
    steps: tuple[Step, ...]
    differences: tuple[Difference, ...]
    num_differences: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    num_parameters: int = 0
    units: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    unit_summaries: tuple[UnitSummary, ...] = ()
    num_rounded: int = 0

    @property
    def identical(self) -> bool:
        """Whether nothing differs in any bit."""
        return not self.num_differences and not self.num_rounded

    @property
    def first(self) -> Difference | None:
        """The first difference, or None."""
        return self.differences[0] if self.differences else None

    @property
    def is_explained(self) -> bool:
        """Whether what differs first, from which the rest follows, is explained by findings."""
        return all(each.is_explained for each in (*self.differences[:1], *self.before_training))

    @property
    def before_training(self) -> tuple[Difference, ...]:
        """What differs in how the models are sharded."""
        return tuple(each for each in self.differences if each.step == 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON."""
        return {
            "identical": self.identical,
            "is_explained": self.is_explained,
            "world_size": self.world_size,
            "device": self.device,
            "torch_version": self.torch_version,
            "versions": self.versions,
            "num_parameters": self.num_parameters,
            "units": list(self.units),
            "unit_summaries": [asdict(each) for each in self.unit_summaries],
            "first": None if self.first is None else self.first.as_dict(),
            "num_differences": self.num_differences,
            "num_rounded": self.num_rounded,
            "differences": [each.as_dict() for each in self.differences],
            "steps": [each.as_dict() for each in self.steps],
            "findings": [each.as_dict() for each in self.findings],
            "notes": list(self.notes),
        }


def verdict(report: ParityReport) -> str:
    """Return the outcome in one line."""
    compared = sum(sum(each.compared.values()) for each in report.steps)
    where = f"{counted(len(report.steps), 'step')} on {counted(report.world_size, 'rank')} ({report.device})"
    if report.identical:
        return f"Identical: {counted(compared, 'tensor')} of {where} are the same, bit for bit."
    first = report.first
    if first is None:
        rounded = counted(report.num_rounded, "gradient")
        return (
            f"Alike: {counted(compared, 'tensor')} of {where} are the same, bit for bit, except {rounded} "
            "that differ by rounding."
        )
    explained = f"{first.explained_by} explains it" if report.is_explained else "and no finding explains it"
    return (
        f"Different: {report.num_differences:,} of {counted(compared, 'tensor')} of {where}; the first is "
        f"{place(first)}, step {first.step}, {explained}."
    )


def place(difference: Difference) -> str:
    """Say what differs of which module or parameter."""
    return f"{difference.stage} {difference.name or '(the whole model)'}"


def what_differs(difference: Difference) -> str:
    """Say how two values differ."""
    gap = difference.gap
    if gap.words:
        return gap.words
    by = "" if gap.largest is None else f", by {gap.largest:.3g} at most"
    by = by if gap.ulps is None else f", {counted(gap.ulps, 'ulp')} at most"
    index = "" if not gap.index else f" at {list(gap.index)}"
    return f"{gap.fsdp1!r} / {gap.fsdp2!r}{index}, {gap.count:,} of {counted(gap.numel, 'number')}{by}"


def lines_of(first: Difference) -> Iterator[str]:
    """Yield what there is to say of the first difference, a line for each thing."""
    when = "before the first step" if first.step == 0 else f"in step {first.step}"
    yield f"The runs part {when}, at {place(first)} (rank {first.rank}):"
    if first.module and first.module != first.name:
        yield f"  module:    {first.module}"
    if first.gap.words:
        yield f"  what:      {first.gap.words}"
    else:
        yield f"  FSDP1:     {first.gap.fsdp1!r}"
        yield f"  FSDP2:     {first.gap.fsdp2!r}"
        yield f"  where:     {what_differs(first).partition(' / ')[2].partition(' at ')[2]}"
    if first.clue:
        yield f"  clue:      {first.clue}"
    code = f"{first.explained_by}: " if first.explained_by else ""
    yield f"  explained: {code}{first.explanation}"


def read_difference(document: dict[str, Any]) -> Difference:
    """Return the difference that :meth:`Difference.as_dict` wrote.

    Example:
        >>> found = Difference(step=1, stage="loss", name="", module="", rank=0, gap=Gap(count=1, fsdp1=2.5))
        >>> read_difference(found.as_dict()) == found
        True
    """
    gap = document["gap"]
    floats = {
        name: float(gap[name]) if gap[name] is not None else None
        for name in ("fsdp1", "fsdp2", "largest", "ratio", "epsilons")
    }
    return Difference(**{**document, "gap": Gap(**{**gap, **floats, "index": tuple(gap["index"])})})


def read_report(document: dict[str, Any]) -> ParityReport:
    """Return the report that :meth:`ParityReport.as_dict` wrote.

    Example:
        >>> report = ParityReport(
        ...     world_size=2, device="cpu", torch_version="2", steps=(), differences=(), num_differences=0,
        ...     findings=(), notes=("a",),
        ... )
        >>> read_report(report.as_dict()) == report
        True
    """

    def read_cost(cost: dict[str, Any]) -> Cost:
        return Cost(**{**cost, "collectives": tuple(Collective(**each) for each in cost["collectives"])})

    more = {"identical", "is_explained", "first"}
    plain = {name: value for name, value in document.items() if name not in more}
    return ParityReport(
        **{
            **plain,
            "units": tuple(plain["units"]),
            "unit_summaries": tuple(
                UnitSummary(**{**each, "names": tuple(each["names"])}) for each in plain["unit_summaries"]
            ),
            "notes": tuple(plain["notes"]),
            "findings": tuple(Finding(**each) for each in plain["findings"]),
            "differences": tuple(map(read_difference, plain["differences"])),
            "steps": tuple(
                Step(
                    **{
                        **each,
                        "fsdp1": read_cost(each["fsdp1"]),
                        "fsdp2": read_cost(each["fsdp2"]),
                        "fsdp1_loss": float(each["fsdp1_loss"]),
                        "fsdp2_loss": float(each["fsdp2_loss"]),
                    }
                )
                for each in plain["steps"]
            ),
        }
    )
