"""What the fuzzer makes of a draw's reports: equal, explained, or a fault."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tests.fuzz.draws import CHANGE_IN_FORWARD, Draw


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.runs import Report


Outcome = Literal["equal", "explained", "refused", "FSDP1 fails", "differs", "fails", "hangs"]
FAULTS: tuple[Outcome, ...] = ("differs", "fails", "hangs")


@dataclass(frozen=True)
class Verdict:
    """What came of a draw, and why."""

    draw: Draw
    outcome: Outcome
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether ours is to blame."""
        return self.outcome in FAULTS


@dataclass(frozen=True)
class Explanation:
    """Why a draw may differ from FSDP1, in the words of docs/prepare.md, and by how much at most.

    The bound is infinite where FSDP1 itself was not right. In each case ours must be as near to the run
    without sharding as rounding allows, or equal to FSDP1's run of the draw's twin.
    """

    reason: str
    bound: float


_OF_BLOCKS = frozenset({"blocks", "blocks and linears", "transformer", "custom"})
"""Policies that make each block a unit."""

_OF_BLOCKS_ALONE = frozenset({"blocks", "transformer", "custom", "none"})
"""Policies that make no linear layer of a block a unit."""

_SEVERAL_RUNS = frozenset({"twice over", "there and back", "registered twice", "as often as the rank says"})
_USED_SEVERAL_TIMES = frozenset({"repeating", "recurrent", "weight norm", "cross", "nested keyword"})
"""Kinds of blocks that use a parameter several times in one run, or may where they are registered twice."""


def _runs_again(drawn: Draw) -> bool:
    """Tell whether a unit runs several times before a backward."""
    return drawn.route in _SEVERAL_RUNS or drawn.backward == "of two forwards at once"


def _uses_again(drawn: Draw) -> bool:
    """Tell whether a parameter is used several times in one run of its unit, or of the unit above."""
    # The encoder looks tokens up in the same embedding.
    if drawn.tie != "none" or drawn.encoder == "yes" or drawn.route == "registered twice":
        return True
    is_by_root = drawn.route in _SEVERAL_RUNS and drawn.backward == "of two forwards at once"
    return is_by_root or bool(_USED_SEVERAL_TIMES.intersection(drawn.blocks))


def _goes_backward_again(drawn: Draw) -> bool:
    """Tell whether several backwards come before a step."""
    return drawn.microbatches != "1" or drawn.backward == "of two forwards in turn"


def _is_recomputed_where_gradients_are(drawn: Draw) -> bool:
    """Tell whether it matters that FSDP1's views of a unit need gradients if anything in it is trained."""
    changes = bool(CHANGE_IN_FORWARD.intersection(drawn.blocks))
    return drawn.route == "recomputed, reentrant" or (drawn.route == "recomputed" and changes)


def _has_unused(drawn: Draw) -> bool:
    """Tell whether some parameters add nothing to the loss in some step."""
    is_for_nothing = drawn.encoder == "yes" and not {"cross", "nested keyword"}.intersection(drawn.blocks)
    is_left_out = drawn.route == "one left out" and len(drawn.blocks) > 1
    return is_for_nothing or is_left_out or bool({"unused", "experts", "passing"}.intersection(drawn.blocks))


_REASONS: tuple[tuple[str, Callable[[Draw], bool], float], ...] = (
    (
        "several forwards at once, recomputed in bfloat16: FSDP1's gradients are wrong",
        lambda d: (
            d.route == "recomputed, reentrant"
            and d.backward == "of two forwards at once"
            and d.precision.startswith("bf16")
        ),
        0.1,
    ),
    # The kernel rounds the numbers after the last full vector otherwise, and shards end elsewhere.
    ("a fused optimizer, on shards that end elsewhere", lambda d: "fused" in d.optimizer, 1e-5),
    ("clipped: the norm is summed in another order", lambda d: d.clip != "no", 1e-5),
    (
        "FM022: added up in the reduction's dtype",
        lambda d: d.sync == "no_sync" and d.precision in {"bf16, reduced in fp32", "reduced in bf16"},
        1e-1,
    ),
    (
        "no_sync in low precision, units that run again",
        lambda d: d.sync == "no_sync" and d.precision != "fp32" and _runs_again(d),
        1e-1,
    ),
    (
        "NO_SHARD: FSDP1 reduces what it has with what is new",
        lambda d: d.strategy == "NO_SHARD" and _goes_backward_again(d),
        1e-5,
    ),
    (
        "NO_SHARD, zeros: FSDP1 adds what two forwards give to float32 zeros, and not in bfloat16",
        lambda d: d.strategy == "NO_SHARD" and d.zero == "zeros" and d.precision != "fp32" and _runs_again(d),
        1e-2,
    ),
    (
        "offloaded: FSDP1 keeps the gradients of the last of several backwards",
        lambda d: d.offload == "yes" and _goes_backward_again(d),
        math.inf,
    ),
    (
        "offloaded, zeros: FSDP1 has gradients of zeros of what is not used",
        lambda d: d.offload == "yes" and d.zero == "zeros" and _has_unused(d),
        math.inf,
    ),
    (
        "NO_SHARD: FSDP1 leaves gradients of what is recomputed within a unit unreduced",
        lambda d: (
            d.strategy == "NO_SHARD" and d.route == "recomputed, reentrant" and d.policy not in _OF_BLOCKS
        ),
        math.inf,
    ),
    (
        "NO_SHARD: FSDP1 leaves gradients of a unit that is not called unreduced",
        lambda d: d.strategy == "NO_SHARD" and d.policy not in _OF_BLOCKS_ALONE and "attention" in d.blocks,
        math.inf,
    ),
    (
        "autocast keeps the cast parameters for what runs again",
        lambda d: d.autocast != "no" and (_runs_again(d) or _uses_again(d)),
        1e-1,
    ),
    (
        "a parameter used several times in each of several runs",
        lambda d: _runs_again(d) and _uses_again(d),
        1e-5,
    ),
    (
        "recomputed, after what is frozen: FSDP1 had gradients there",
        lambda d: d.frozen != "nothing" and _is_recomputed_where_gradients_are(d),
        math.inf,
    ),
    (
        "FM124: unused beside what is frozen: FSDP1 had gradients of zeros",
        lambda d: (d.frozen != "nothing" or "adapter" in d.blocks) and _has_unused(d),
        math.inf,
    ),
    (
        "FM012: FSDP1 kept gradients in low precision",
        lambda d: d.precision == "bf16 grads kept",
        math.inf,
    ),
    (
        "zeros that FSDP1 took for no gradient",
        lambda d: d.zero == "zeros" and (d.frozen == "frozen later" or d.originals == "no"),
        math.inf,
    ),
)
"""Why a draw may differ, when, and by how much where nothing enlarges it."""

_CODES = {
    "FM273": "FSDP1 tore a tie",
    "FM123": "FSDP1 reduced a tie in part",
}
"""Findings that tell where FSDP1 was not right."""


def explanations(drawn: Draw, codes: list[str]) -> list[Explanation]:
    """Return why a draw may differ from FSDP1."""
    enlarged = _bound_of_order(drawn)
    found = [Explanation(f"{code}: {_CODES[code]}", math.inf) for code in _CODES if code in codes]
    return found + [
        Explanation(reason, max(bound, enlarged)) for reason, applies, bound in _REASONS if applies(drawn)
    ]


def twin_of(drawn: Draw) -> Draw | None:
    """Return the draw whose run under FSDP1 ours must be equal to, if it is not this one."""
    return replace(drawn, precision="bf16") if drawn.precision == "bf16 grads kept" else None


def _nan_last(distance: float) -> float:
    return math.inf if math.isnan(distance) else distance


def _bound_of_order(drawn: Draw) -> float:
    """Return how far sums in another order may lead in three steps.

    What differs in its last bit moves sums to the next number of bfloat16; and where optimizers divide by the
    gradient, what is nearly zero may change its sign.
    """
    is_low = drawn.precision != "fp32" or drawn.autocast != "no"
    if drawn.optimizer.startswith("SGD") and not is_low:
        return 1e-5
    return 0.5 if drawn.optimizer in {"RMSprop", "Adadelta", "Adagrad"} else 1e-1


_FROM_UNSHARDED = {
    "losses": (1e-5, 2e-2),
    "gradients": (1e-4, 1e-1),
    "parameters": (1e-5, 1e-5),
    "buffers": (1e-5, 2e-2),
    "states": (1e-5, 1e-5),
}
"""How far ours may be from the run without sharding, relative to what is compared: in float32, and in less.

Optimizers compute in float32 in each case, from the same gradients.
"""


def judge(drawn: Draw, reports: list[Report]) -> Verdict:
    """Judge by what the ranks report."""
    for report in reports:
        if report.fsdp1:
            return Verdict(drawn, "FSDP1 fails", report.fsdp1)
    for report in reports:
        if report.ours:
            return Verdict(drawn, "refused" if report.is_ours_known else "fails", report.ours)
    worst = {
        what: max((each.distances[what] for each in reports), key=_nan_last) for what in reports[0].distances
    }
    if not any(worst.values()):
        return Verdict(drawn, "equal")
    words = ", ".join(
        f"{what} {distance:.2g}{_where(reports, what)}" for what, distance in worst.items() if distance
    )
    why = explanations(drawn, reports[0].codes)
    words += "".join(_third_run(reports, kind) for kind in ("unsharded", "twin"))
    bound = max((each.bound for each in why), default=0.0)
    is_near = bound == math.inf or all(distance <= bound for distance in worst.values())
    if why and is_near and _is_right(drawn, reports):
        return Verdict(drawn, "explained", f"{'; '.join(each.reason for each in why)} ({words})")
    return Verdict(drawn, "differs", words)


def _is_right(drawn: Draw, reports: list[Report]) -> bool:
    """Tell whether ours is what the third run is, which the verdict asks for where FSDP1 differs."""
    twin = twin_of(drawn)
    if twin is not None:
        if not all(each.twin for each in reports):
            return False
        as_twin = [replace(each, distances=each.twin, twin={}) for each in reports]
        return not judge(twin, as_twin).is_fault
    is_low = drawn.precision != "fp32" or drawn.autocast != "no"
    return all(
        each.unsharded
        and all(each.unsharded[what] <= limits[is_low] for what, limits in _FROM_UNSHARDED.items())
        for each in reports
    )


def _third_run(reports: list[Report], kind: Literal["unsharded", "twin"]) -> str:
    every = [getattr(each, kind) for each in reports]
    apart = {what: max((each[what] for each in every), key=_nan_last) for what in every[0] if all(every)}
    words = ", ".join(f"{what} {distance:.2g}" for what, distance in apart.items() if distance)
    return f"; {kind}: {words or 'equal'}" if apart else ""


def _where(reports: list[Report], what: str) -> str:
    places = [each.where[what] for each in reports if what in each.where]
    return f" ({places[0]})" if places else ""


def summary(verdicts: list[Verdict]) -> str:
    """Return how many draws came out how, and every reason with its number."""
    counts = Counter(each.outcome for each in verdicts)
    lines = [f"{len(verdicts)} draws: " + ", ".join(f"{counts[each]} {each}" for each in counts)]
    reasons = Counter(
        (each.outcome, each.reason.split("\n")[0].split(" (")[0][:160])
        for each in verdicts
        if each.outcome in {"explained", "refused", "FSDP1 fails"}
    )
    lines += [f"  {number:4d}  {outcome}: {why}" for (outcome, why), number in reasons.most_common()]
    return "\n".join(lines)
