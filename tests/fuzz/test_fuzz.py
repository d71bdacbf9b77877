"""Draws with a fixed seed, under FSDP1 and prepared; and the fuzzer's own words."""

from __future__ import annotations

import math
import random
from dataclasses import asdict

import pytest
import torch

from tests.fuzz import driver, faults
from tests.fuzz.draws import CHOICES, Draw, draw, parse, simpler
from tests.fuzz.runs import Report, apart_in_numbers, apart_in_tensors
from tests.fuzz.units import KINDS
from tests.fuzz.verdicts import explanations, judge
from tests.ranks import RanksFailedError, run_ranks


DRAWS = 30
"""What a core trains in half a minute, others under each torch; `make fuzz` draws more."""


def test_what_is_drawn_trains_as_under_fsdp1() -> None:
    verdicts = list(driver.verdicts_of(driver.draw_many(DRAWS, seed=int(torch.__version__.split(".")[1]))))
    assert [str(each.draw) for each in driver.faults(verdicts)] == []
    assert len(verdicts) == DRAWS
    assert sum(each.outcome == "equal" for each in verdicts) > DRAWS / 2


@pytest.mark.gpu
def test_what_is_drawn_trains_as_under_fsdp1_on_a_gpu() -> None:
    verdicts = list(driver.verdicts_of(driver.draw_many(DRAWS, seed=1), device="cuda"))
    assert [str(each.draw) for each in driver.faults(verdicts)] == []
    assert sum(each.outcome == "equal" for each in verdicts) > DRAWS / 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_draw_can_be_repeated_from_its_words(ranks: int) -> None:
    drawn = driver.draw_many(300, seed=1, ranks=ranks)
    assert {each.ranks for each in drawn} == {ranks}
    assert [parse(str(each)) for each in drawn] == drawn
    for name, choices in CHOICES.items():
        assert parse(f"{name}={choices[-1]}") == Draw(**{name: choices[-1]})  # type: ignore[arg-type]


def test_words_that_cannot_be_drawn_are_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        parse("strategy=SHARD")
    with pytest.raises(ValueError, match="No such kinds"):
        parse("blocks=plain + plane")


def test_shrinking_ends() -> None:
    """Each step is simpler than the last."""
    chance = random.Random(3)  # nothing is kept secret
    drawn = draw(chance, tuple(KINDS), ranks=2)
    for _ in range(100):
        following = next(simpler(drawn), None)
        if following is None:
            break
        drawn = following
    assert drawn == Draw()


def _report(*, unsharded: float | None = None, twin: float | None = None, **distances: float) -> Report:
    parts = ("losses", "gradients", "parameters", "buffers", "states")
    nothing = dict.fromkeys(parts, 0.0)
    return Report(
        distances=nothing | distances,
        unsharded={} if unsharded is None else nothing | {"gradients": unsharded},
        twin={} if twin is None else nothing | {"gradients": twin},
    )


def test_verdicts() -> None:
    assert judge(Draw(), [_report(), _report()]).outcome == "equal"
    assert judge(Draw(), [_report(), _report(losses=1e-9)]).outcome == "differs"
    assert judge(Draw(), [Report(fsdp1="it fails"), _report()]).outcome == "FSDP1 fails"
    assert judge(Draw(), [_report(), Report(ours="it fails")]).outcome == "fails"
    assert judge(Draw(), [_report(), Report(ours="no", is_ours_known=True)]).outcome == "refused"


def test_what_is_explained_is_near_to_fsdp1_and_to_the_run_without_sharding() -> None:
    clipped = parse("clip=2-norm")

    def outcome(unsharded: float | None, **distances: float) -> str:
        return judge(clipped, [_report(unsharded=0.0), _report(unsharded=unsharded, **distances)]).outcome

    assert outcome(1e-7, losses=1e-9) == "explained"
    assert outcome(1e-3, losses=1e-9) == "differs"
    assert outcome(math.nan, losses=1e-9) == "differs"
    assert outcome(None, losses=1e-9) == "differs"
    assert outcome(1e-7, losses=1e-3) == "differs"
    assert outcome(1e-7, gradients=math.nan) == "differs"


def test_where_fsdp1_is_not_right_another_run_is_the_measure() -> None:
    zeros = parse("zero=zeros; originals=no")
    kept = parse("precision=bf16 grads kept")
    both = parse("precision=bf16 grads kept; clip=2-norm")

    def outcome(drawn: Draw, **third: float) -> str:
        return judge(drawn, [_report(gradients=math.nan, losses=7.0, **third)] * 2).outcome

    assert outcome(zeros, unsharded=1e-7) == "explained"
    assert outcome(zeros, unsharded=1e-3) == "differs"
    assert outcome(zeros) == "differs"
    assert outcome(kept, unsharded=1e-7, twin=0.0) == "explained"
    assert outcome(kept, unsharded=1e-7, twin=1e-9) == "differs"
    assert outcome(kept, unsharded=1e-7) == "differs"
    assert outcome(both, unsharded=1e-7, twin=1e-9) == "explained"
    assert outcome(both, unsharded=1.0, twin=1e-9) == "differs"


def test_what_explains_a_difference_hides_no_fault() -> None:
    """Where FSDP1 itself was not right, faults that are put in on purpose show in the third run."""
    ranks = run_ranks(faults.run_each)
    for name, fault in faults.FAULTS.items():
        drawn = parse(fault.draw)
        plain, broken = (list(each) for each in zip(*(each[name] for each in ranks), strict=True))
        reasons = [each for each in explanations(drawn, plain[0].codes) if each.bound == math.inf]
        assert any(fault.reason in each.reason for each in reasons), name
        assert judge(drawn, plain).outcome in {"equal", "explained"}, name
        assert judge(drawn, broken).outcome == "differs", name


def test_what_is_no_number_is_apart() -> None:
    """Not from itself, but from every number, and from what is missing."""
    nan = math.nan
    assert apart_in_numbers([1.0, nan], [1.0, nan]) == 0
    assert apart_in_numbers([1.0, 2.0], [1.5, 2.0]) == 0.5
    assert all(
        math.isnan(apart_in_numbers(*each)) for each in (([1.0], [1.0, 2.0]), ([0.0, 1.0], [0.0, nan]))
    )

    def apart(one: list[float], other: list[float]) -> tuple[float, str]:
        return apart_in_tensors({"w": torch.tensor(one)}, {"w": torch.tensor(other)})

    assert apart([0.0, nan, math.inf], [0.0, nan, math.inf]) == (0.0, "")
    assert apart([0.0, nan], [0.5, nan]) == (0.5, "w")
    assert math.isnan(apart([0.0, 1.0], [nan, 1.0])[0])
    assert apart([math.inf], [1.0]) == (math.inf, "w")


def test_what_ended_the_ranks_is_told_by_what_they_said_last() -> None:
    """They say "fsdp1" and "ours" before they begin, and report when they have both."""
    drawn = [Draw(number=number) for number in range(3)]
    done = ["fsdp1", "ours", asdict(_report())]
    failure = RanksFailedError({0: "did not finish"}, 2)

    def outcomes(*last: str) -> list[str]:
        verdicts = driver.what_came_of(drawn, [[*done, each] for each in last], failure)
        return [each.outcome for each in verdicts]

    assert outcomes("fsdp1", "fsdp1") == ["equal", "FSDP1 fails"]
    assert outcomes("fsdp1", "ours") == ["equal", "hangs"]
    assert outcomes("ours", "ours") == ["equal", "hangs"]
    with pytest.raises(RanksFailedError):
        list(driver.what_came_of(drawn, [[], []], failure))
