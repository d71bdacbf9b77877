"""Why two runs part: which finding of the plan explains it, and what the numbers themselves tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.parity.report import Cost, Difference, Stage
    from fsdp_migrate.parity.tensors import Gap


@dataclass(frozen=True)
class Explains:
    """What a finding may explain: differences of these stages, of so many ulps at most."""

    stages: tuple[Stage, ...]
    words: str
    most_ulps: int | None = None


_AFTER_BACKWARD: tuple[Stage, ...] = ("gradient", "parameter", "optimizer state")

EXPLAINS: dict[str, Explains] = {
    "FM002": Explains(
        ("gradient", "parameter", "optimizer state"),
        "NO_SHARD over several backward passes: the same sums in another order",
        16,
    ),
    "FM012": Explains(_AFTER_BACKWARD, "FSDP1 kept gradients in low precision"),
    "FM101": Explains(("units",), "a container without a forward is no unit of FSDP2's"),
    "FM102": Explains(("units",), "a module without parameters of its own needs no unit"),
    "FM103": Explains(("units",), "its parameters are tied, and belong to the unit above"),
    "FM104": Explains(("units",), "its parameters are tied, and the units are one"),
    "FM107": Explains(_AFTER_BACKWARD, "FSDP1's replicas of one rank each were not averaged, these are"),
    "FM109": Explains(
        ("output", "loss", "recomputed", *_AFTER_BACKWARD),
        "parameters that are not contiguous become so, and kernels sum in another order",
        64,
    ),
    "FM113": Explains(("parameter", "optimizer state"), "an option of the optimizer is switched off", 64),
    "FM114": Explains(("parameter", "optimizer state"), "the optimizer computed on FSDP1's flat shards"),
    "FM123": Explains(_AFTER_BACKWARD, "FSDP1 reduced a part of a parameter tied across units"),
}
"""What each finding of a plan may explain; where several do, the first of the plan's is named."""

LAST_BITS = (
    "sums over more than 2 ranks are made in another order, and docs/prepare.md lists what else differs in "
    "the last bits"
)
_FEW_ULPS = 16


def explain(difference: Difference, findings: Sequence[Finding]) -> Difference:
    """Return a difference with the finding that explains it, if one does.

    Example:
        >>> from fsdp_migrate.findings import make_finding
        >>> from fsdp_migrate.parity.report import Difference
        >>> from fsdp_migrate.parity.tensors import Gap
        >>> found = Difference(step=1, stage="gradient", name="a", module="", rank=0, gap=Gap(ulps=9))
        >>> explain(found, [make_finding("FM012", "mixed_precision", "kept")]).explained_by
        'FM012'
    """
    if difference.stage == "ties":
        return _explain_tie(difference, findings)
    for finding in findings:
        rule = EXPLAINS.get(finding.code)
        if rule is None or difference.stage not in rule.stages:
            continue
        if rule.most_ulps is not None and (difference.gap.ulps or rule.most_ulps + 1) > rule.most_ulps:
            continue
        return replace(difference, explained_by=finding.code, explanation=rule.words)
    if difference.gap.ulps is not None and difference.gap.ulps <= _FEW_ULPS:
        return replace(difference, explanation=f"{difference.explanation}; few ulps: {LAST_BITS}")
    return difference


def _explain_tie(difference: Difference, findings: Sequence[Finding]) -> Difference:
    """FSDP1 tears ties across units; a tie that FSDP2 lacks is explained by nothing."""
    tied = [each.code for each in findings if each.code in {"FM103", "FM104"}]
    if tied and difference.gap.words.startswith("only under FSDP2"):
        words = "FSDP1 broke the tie, which is across units; here it is kept"
        return replace(difference, explained_by=tied[0], explanation=words)
    return difference


def clue_of(stage: Stage, gap: Gap, costs: tuple[Cost, Cost] | None, ranks: int) -> str:
    """Return what the numbers tell of the cause of a difference, or nothing.

    Example:
        >>> from fsdp_migrate.parity.tensors import Gap
        >>> clue_of("gradient", Gap(ratio=2.0), None, 2)
        "every number is 2 times FSDP1's, as there are 2 ranks: a divisor is off by the world size"
    """
    clues: list[str] = []
    if stage == "gradient" and costs is not None:
        clues.extend(_clues_of_traffic(*costs))
    if stage in {"gradient", "loss"} and gap.ratio is not None and abs(gap.ratio - 1) > _SAME:
        clues.append(_clue_of_ratio(gap.ratio, ranks))
    return "; ".join(clues)


def _clue_of_ratio(ratio: float, ranks: int) -> str:
    text = f"every number is {ratio:.6g} times FSDP1's"
    if ranks > 1 and any(abs(ratio - times) < _SAME * times for times in (ranks, 1 / ranks)):
        return f"{text}, as there are {ranks} ranks: a divisor is off by the world size"
    return text


_SAME = 1e-3
_REDUCTIONS = ("reduce-scatter", "all-reduce")


def _clues_of_traffic(fsdp1: Cost, fsdp2: Cost) -> Iterable[str]:
    """Compare which reductions each did, and in which dtypes."""
    dtypes = [
        {each.dtype for each in cost.collectives if each.kind in _REDUCTIONS} for cost in (fsdp1, fsdp2)
    ]
    if all(dtypes) and dtypes[0] != dtypes[1]:
        words = [" and ".join(sorted(each)) for each in dtypes]
        yield f"gradients are reduced in {words[0]} under FSDP1, in {words[1]} under FSDP2"
    for kind in _REDUCTIONS:
        calls = [sum(each.calls for each in cost.collectives if each.kind == kind) for cost in (fsdp1, fsdp2)]
        if calls[0] and not calls[1]:
            yield f"FSDP1 made {calls[0]} {kind} collectives in this step, FSDP2 none"
