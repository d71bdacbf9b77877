"""What two runs of one script showed, under FSDP1 and under FSDP2: plain data, as it stands in JSON."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import counted, listed
from fsdp_migrate.parity.report import place


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.parity.left_records import Records
    from fsdp_migrate.parity.report import Difference
    from fsdp_migrate.parity.tensors import Gap


Unsharded = Literal["", "FSDP1", "FSDP2", "neither", "unknown"]
"""Like which of the two runs FSDP1 that shards nothing trains; empty where it did not run."""

Stateless = Literal["", "FSDP1", "FSDP2"]
"""Which of the two runs steps by an optimizer without a state where the other's has one."""

MOST_EPSILONS = 64.0
"""By how many units of the last bit of its largest number a tensor differs at most where it is rounded."""
_MUCH = 1e4  # what is none for sure
_LOW = 1e6  # what sums in a dtype of 8 bits make of it at most, a tenth of the largest number
_TOLD = re.compile(r"\b(FM\d{3}) [^:\n]{1,200}: .*")
_ADDS_UP, _OWN_VALUES = "FM022 mixed_precision.reduce_dtype: ", "FM132 sync_module_states: "


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """A checkpoint that both runs wrote: whether they hold the same, or why that could not be told.

    ``is_rounded`` tells that only numbers differ, and by no more than rounding; ``is_fsdp1s`` that FSDP1's is
    corrupt (FM217), and that nothing but its moments differs by more; ``is_enlarged`` that no number differs
    by more than in FSDP1's own run where its gradients are rounded otherwise. ``files`` are those that hold
    it, below ``path``, where that is the output folder itself.
    """

    path: str
    is_same: bool | None
    words: str = ""
    is_rounded: bool = False
    is_fsdp1s: bool = False
    is_enlarged: bool = False
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptReport:
    """What was seen of the two runs.

    ``steps`` are the steps of optimizers that both made, ``steps_before`` and ``steps_after`` those of each.
    ``differences`` are in the order of the training, those by more than rounding before the others, which
    ``num_rounded`` counts. ``printed`` pairs lines that say the same with other
    numbers. ``only_before`` and ``only_after`` are files of the output folder that one run alone wrote.
    ``num_pairs`` counts these pairs, and ``num_printed`` the lines without one too, also those that are not
    listed.
    ``printed_before`` and ``printed_after`` are lines, without warnings, that have no such pair; ``told`` are
    the findings that this package logged in the second run.
    ``is_others`` tells that the second run has FSDP2 of other code than ``prepare_fully_shard``, such as a
    framework's. ``were_fsdp1`` tells of each run whether torch's FSDP1 wraps a model that it trains.
    ``differs_from_itself`` tells that a second run under FSDP1 gave other numbers than the first.
    ``is_enlarged`` tells that in the first step that differs by more, no number does but where its gradient
    is rounding. Then the script runs once more under FSDP1, with gradients that are rounded otherwise:
    ``shown_by_rounding`` tells whether it parts from itself by as much, None where it did not run so, and
    ``num_enlarged`` counts the differences that it shows. ``follows_rounding`` tells that the steps before
    differ, by rounding alone. ``unsharded`` tells like which of the two the script under FSDP1 with
    ``NO_SHARD`` trains, up to the first difference.
    ``stateless`` tells whose optimizer has no state, such as moments, in the step that differs first.
    ``records`` are files of JSON that both wrote with other bytes.
    ``notes`` say what was not compared.
    """

    before: str
    after: str
    command: tuple[str, ...]
    steps_before: int
    steps_after: int
    compared: int
    differences: tuple[Difference, ...]
    num_differences: int
    num_rounded: int = 0
    num_enlarged: int = 0
    num_printed: int = 0
    num_pairs: int = 0
    printed: tuple[tuple[str, str], ...] = ()
    printed_before: tuple[str, ...] = ()
    printed_after: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoints, ...] = ()
    records: tuple[Records, ...] = ()
    were_fsdp1: tuple[bool, bool] = (True, False)
    is_others: bool = False
    differs_from_itself: bool = False
    is_enlarged: bool = False
    shown_by_rounding: bool | None = None
    follows_rounding: bool = False
    unsharded: Unsharded = ""
    stateless: Stateless = ""
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first difference, or None."""
        return self.differences[0] if self.differences else None

    @property
    def alike(self) -> bool:
        """Whether FSDP1 is gone, steps and files are the same, and what differs comes of rounding.

        Of what differs by more than rounding, that is so where FSDP1's own run shows as much. Nothing is
        known to be alike where FSDP1's own run gives other numbers each time.
        """
        return (
            bool(self.steps_before)
            and not self.differs_from_itself
            and not self.were_fsdp1[1]
            and self.steps_before == self.steps_after
            and not self.num_unexplained
            and not self.only_before
            and not self.only_after
            and all(each.is_same is not False or self.follows(each) for each in self.checkpoints)
        )

    @property
    def identical(self) -> bool:
        """Whether they are alike, and nothing differs in any bit."""
        return self.alike and not self.num_differences

    @property
    def num_unexplained(self) -> int:
        """How many differences are neither rounding, nor what FSDP1's own run makes of it."""
        return self.num_differences - self.num_rounded - self.num_enlarged

    def follows(self, saved: Checkpoints) -> bool:
        """Tell whether a checkpoint differs by no more than rounding makes of it, as the steps do."""
        return saved.is_enlarged or (bool(self.num_rounded) and saved.is_rounded)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON."""
        found = {**asdict(self), "differences": [each.as_dict() for each in self.differences]}
        return {"identical": self.identical, "alike": self.alike, **found}


def is_rounding(gap: Gap) -> bool:
    """Tell whether two tensors differ by no more than sums in another order make them differ.

    Example:
        >>> from fsdp_migrate.parity.tensors import Gap
        >>> is_rounding(Gap(epsilons=2.0)), is_rounding(Gap(epsilons=1e5)), is_rounding(Gap())
        (True, False, False)
    """
    return gap.epsilons is not None and gap.epsilons <= MOST_EPSILONS


def verdict(report: ScriptReport) -> str:
    """Return the outcome in one line.

    Example:
        >>> verdict(ScriptReport(
        ...     before="a", after="b", command=("python", "t.py"), steps_before=0, steps_after=0, compared=0,
        ...     differences=(), num_differences=0,
        ... ))
        'Nothing was seen: no optimizer of torch made a step in the run under FSDP1.'
    """
    before, after = report.steps_before, report.steps_after
    if not before:
        return "Nothing was seen: no optimizer of torch made a step in the run under FSDP1."
    if report.differs_from_itself:
        return (
            "Not comparable: the run under FSDP1 gave other numbers when it ran again. Set every seed, and "
            "compare again."
        )
    if report.were_fsdp1[1]:
        return "Not migrated: the second run trains with FSDP1 too. `fsdp-migrate scan` says what is left."
    seen = f"{counted(report.compared, 'tensor')} of {counted(min(before, after), 'step')}"
    if report.alike and report.num_differences:
        return f"Alike: of {seen} {_how_many_differ(report)}.{_besides(report)}"
    if report.first is not None and report.num_unexplained:
        first = f"{place(report.first)}, step {report.first.step}"
        is_off = report.stateless == "FSDP1" or (report.unsharded == "FSDP2" and not report.is_enlarged)
        whose = " FSDP1's own run was off." if is_off else ""
        number = f"{report.num_unexplained:,} of {seen}"
        if report.is_enlarged and report.shown_by_rounding is None and not report.stateless:
            begin = f"Undecided: {number} differ by more than rounding; the first is {first}."
            return f"{begin} It may be rounding that the optimizer enlarges."
        return f"Different: {number}; the first is {first}.{whose}"
    if before != after:
        return f"Different: FSDP1 made {counted(before, 'step')}, FSDP2 {counted(after, 'step')}."
    if report.identical:
        return f"Identical: {seen} are the same, bit for bit.{_besides(report)}"
    left = f"Different: {seen} are alike, but not what the runs left in the output folder."
    files = [each for each in report.checkpoints if each.is_same is False and not report.follows(each)]
    is_same_else = bool(files) and not (report.only_before or report.only_after)
    is_fsdp1s = is_same_else and all(each.is_fsdp1s for each in files)
    return left + (" FSDP1's own files are corrupt (FM217)." if is_fsdp1s else "")


def _how_many_differ(report: ScriptReport) -> str:
    """Say of two runs that are alike how many tensors differ, by rounding and by what becomes of it."""
    rounded, enlarged = report.num_rounded, report.num_enlarged
    if not enlarged:
        return f"{rounded:,} differ, by rounding alone"
    of_it = "by what the optimizer makes of {}, as much as in FSDP1's own run"
    if not rounded:
        return f"{enlarged:,} differ, {of_it.format('rounding')}"
    return f"{rounded:,} differ by rounding alone, and {enlarged:,} {of_it.format('it')}"


def _besides(report: ScriptReport) -> str:
    """Say what the verdict is not for: lines that differ, and checkpoints that could not be read."""
    number = sum(each.is_same is None for each in report.checkpoints)
    printed = f" Printed otherwise: {counted(report.num_printed, 'line')}." if report.num_printed else ""
    wrote = sum(not each.is_same for each in report.records)
    printed += f" Written otherwise: {counted(wrote, 'file')} of records." if wrote else ""
    return printed + (f" Not compared: {counted(number, 'checkpoint')}." if number else "")


_CAUSES: dict[Unsharded, str] = {
    "": "",
    "FSDP2": "FSDP1's shards. With sharding_strategy=NO_SHARD, where FSDP1 keeps parameters whole, the "
    "script trains as under FSDP2: FSDP1's own run was off",
    "FSDP1": "not FSDP1's shards: with sharding_strategy=NO_SHARD, where it keeps parameters whole, the "
    "script trains as with them. Look at what was rewritten, at what got a comment, and at what the "
    "conversion of a config said",
    "neither": "not known. With sharding_strategy=NO_SHARD, where FSDP1 keeps parameters whole, it gives "
    "other numbers here as well. It may be rounding: clipping sums in another order, and Adam makes more of "
    "it where gradients are near 0. Leave out the clipping once, or take SGD, and compare again",
    "unknown": "not known: with sharding_strategy=NO_SHARD, where FSDP1 keeps parameters whole, the script "
    "did not come so far",
}
_NO_GRADIENT = (
    ". FSDP1 has no gradient here. In mixed precision it loses a step's gradients where a forward with "
    "gradients that no backward follows comes before (fsdp1-loses-gradients, which `doctor` names); FSDP2 "
    "has them. Run that forward under `torch.no_grad()` in both, and compare again"
)
_STATELESS: dict[Stateless, str] = {
    "FSDP1": "FSDP1's optimizer. It steps here without a state, such as moments, where FSDP2's has one: "
    "FSDP1's run has loaded none, and was off. So Accelerate and HF Trainer resume with SHARDED_STATE_DICT "
    "(accelerate-resumes-without-moments, which `fsdp-migrate doctor --checkpoint` names), and so does "
    "`dcp.load` into `FSDP.optim_state_dict` of a new optimizer (fsdp1-resumes-without-moments, which "
    "`doctor` names). Compare with FSDP1's run that was not stopped",
    "FSDP2": "FSDP2's optimizer. It steps here without a state, such as moments, where FSDP1's has one: the "
    "run under FSDP2 has loaded none. See where the script loads its optimizer, and that it does so after "
    "the model is sharded; `fsdp-migrate inspect` says how",
}
_ADDED_UP = (
    "gradients that are added up in another dtype from microbatch to microbatch, as it seems: FM022 is among "
    "the lines that the run under FSDP2 printed. Take one microbatch a step in both, or the same dtype for "
    "`param_dtype` and `reduce_dtype`, and compare again: what differs then has another cause"
)
_MIXED = (
    "the values that the runs begin with, as it seems. Each rank made its own, and FSDP1 and FSDP2 put other "
    "parts of them together (FM132, which the run under FSDP2 printed). Set one seed for all ranks above the "
    "model, or pass `sync_module_states=True`, in both, and compare again"
)
_NOISE = (
    "The gradients of this step are the same but for rounding, seen beside the largest of them, and no "
    "number differs by more but where its gradient is 0 beside it: Adam makes a step of that"
)
_LEAVE_OUT = "Leave out the clipping once, or take SGD, and compare again"
_ENLARGED: dict[bool | None, str] = {
    True: f"rounding. {_NOISE}, and as large a one in FSDP1's own run, with gradients rounded otherwise",
    False: "not known. What differs first is small beside the largest gradient of the step, as rounding is. "
    "But FSDP1's own run, with gradients rounded otherwise, does not part from itself by as much: a small "
    f"gradient may be another one. {_LEAVE_OUT}",
    None: f"rounding, as it seems. {_NOISE}. {_LEAVE_OUT}",
}
_GROWN = (
    ". Or it is rounding that has grown: the steps before differ by that alone, and this one by little more. "
    f"{_LEAVE_OUT}"
)
_THIRD = (
    "not known. With sharding_strategy=NO_SHARD, where FSDP1 keeps parameters whole, it gives a third set of "
    "numbers, by more than rounding makes: one of FSDP1's own runs is off at least. It computes on with old "
    "weights where they are written after a forward without a backward (`fsdp-migrate explain FM451`)"
)
_THEIRS = (
    ". Not prepare_fully_shard shards the model, but other code, such as a framework: `fsdp-migrate config` "
    "names what that computes otherwise, above all in mixed precision (FM354)"
)


def cause(report: ScriptReport) -> str:
    """Return in words which of the two runs is off, as a run without shards tells it; empty without one."""
    if report.stateless:
        return _STATELESS[report.stateless]
    if report.is_enlarged:
        return _ENLARGED[report.shown_by_rounding]
    if report.first is not None and report.first.step <= 1 and _prints(report, _OWN_VALUES):
        return _MIXED
    if _is_of_sums(report):
        return _ADDED_UP
    is_much = report.first is not None and (report.first.gap.epsilons or math.inf) > _MUCH
    if report.unsharded == "neither" and is_much:
        return _THIRD + _otherwise(report)
    grown = report.follows_rounding and report.unsharded == "FSDP1" and not is_much
    theirs = _THEIRS if report.is_others and report.unsharded in {"FSDP1", "neither"} else ""
    none = _NO_GRADIENT if _has_none_under_fsdp1(report) and report.unsharded != "FSDP2" else ""
    others = _otherwise(report) if report.unsharded != "FSDP2" else ""
    return _CAUSES[report.unsharded] + theirs + (_GROWN if grown else "") + none + others


def changes(report: ScriptReport) -> list[str]:
    """Return what the second run logged that it does otherwise than FSDP1, without what is the same."""
    found = [(line, FINDING_CODES.get(line[:5])) for line in report.told]
    return [line for line, code in found if code is None or code.fidelity == "changed"]


def _otherwise(report: ScriptReport) -> str:
    codes = sorted({line[:5] for line in changes(report)})
    if not codes:
        return ""
    return f". Or what the run under FSDP2 says that it does otherwise: {listed(codes, 6)}"


def _has_none_under_fsdp1(report: ScriptReport) -> bool:
    first = report.first
    return first is not None and first.stage == "gradient" and first.gap.words == "only under FSDP2"


def _is_of_sums(report: ScriptReport) -> bool:
    """Tell whether gradients differ first, by no more than sums in low precision, and the run says why.

    FSDP1 without shards adds them up in the parameters' dtype too: that run tells nothing of it.
    """
    first = report.first
    if report.unsharded == "FSDP2" or first is None or first.stage != "gradient":
        return False
    is_small = (first.gap.epsilons or math.inf) <= _LOW
    return is_small and _prints(report, _ADDS_UP)


def _prints(report: ScriptReport, start: str) -> bool:
    return any(line.startswith(start) for line in report.told)


def told_apart(lines: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines that a script printed, and the findings that this package logged among them.

    Example:
        >>> told_apart(["loss 1", "WARNING:fsdp_migrate.sharding.prepare:FM012 mixed_precision: In bf16."])
        (['loss 1'], ('FM012 mixed_precision: In bf16.',))
    """
    own, others = list[str](), list[str]()
    for line in lines:
        found = _TOLD.search(line)
        if found is not None and found[1] in FINDING_CODES:
            own.append(found[0])
        else:
            others.append(line)
    return others, tuple(dict.fromkeys(own))
