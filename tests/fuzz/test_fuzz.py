"""Draws with a fixed seed, under FSDP1 and prepared; and the fuzzer's own words."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from tests.fuzz import driver
from tests.fuzz.draws import CHOICES, Draw, draw, parse, simpler
from tests.fuzz.runs import Report
from tests.fuzz.units import KINDS
from tests.fuzz.verdicts import judge
from tests.ranks import RanksFailedError


DRAWS = 60
"""What a core trains in under a minute; `make fuzz` draws more."""


def test_what_is_drawn_trains_as_under_fsdp1() -> None:
    verdicts = list(driver.verdicts_of(driver.draw_many(DRAWS, seed=12)))
    assert [str(each.draw) for each in driver.faults(verdicts)] == []
    assert len(verdicts) == DRAWS
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


def _report(**distances: float) -> Report:
    return Report(distances={"losses": 0.0, "gradients": 0.0, **distances})


def test_verdicts() -> None:
    clipped = parse("clip=2-norm")
    assert judge(Draw(), [_report(), _report()]).outcome == "equal"
    assert judge(Draw(), [_report(), _report(losses=1e-9)]).outcome == "differs"
    assert judge(clipped, [_report(), _report(losses=1e-9)]).outcome == "explained"
    assert judge(clipped, [_report(), _report(losses=1e-3)]).outcome == "differs"
    assert judge(clipped, [_report(), _report(gradients=float("nan"))]).outcome == "differs"
    assert judge(Draw(), [Report(fsdp1="it fails"), _report()]).outcome == "FSDP1 fails"
    assert judge(Draw(), [_report(), Report(ours="it fails")]).outcome == "fails"
    assert judge(Draw(), [_report(), Report(ours="no", is_ours_known=True)]).outcome == "refused"


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
