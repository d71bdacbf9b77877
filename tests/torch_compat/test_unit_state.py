"""Gradient scaling whose ranks agree, held against FSDP1's own."""

from __future__ import annotations

import pytest

from fsdp_migrate.errors import ProcessGroupError
from fsdp_migrate.runtime import grad_scaler
from tests.rank_bodies import runtime
from tests.ranks import run_ranks
from tests.runtime.cases import Cases, assert_equal, is_refused


SCALED = Cases(runtime.scale, [("fp16",), ("NO_SHARD",)])


@pytest.mark.parametrize("case", ["fp16", "NO_SHARD"])
def test_scaling_is_that_of_the_sharded_grad_scaler(case: str) -> None:
    for expected, found in SCALED.of(case):
        assert [scale for scale, _ in found] == [scale for scale, _ in expected] == [1024, 512, 256, 256, 512]
        for (_, params), (_, found_params) in zip(expected, found, strict=True):
            assert_equal(found_params, params)
        assert_equal(found[1][1], found[0][1])
        assert_equal(found[2][1], found[0][1])


OVERFLOWS = [
    ("none", "one", (4.0, True, True)),
    ("plain", "one", (2.0, False, False)),
    ("sharded", "one", (2.0, False, False)),
    ("plain", "two", (2.0, False, True)),
    ("sharded", "fused", (2.0, True, False)),
]


OVERFLOWN = Cases(runtime.scale_mixed, [row[:2] for row in OVERFLOWS])


@pytest.mark.parametrize(("overflow", "optimizer", "expected"), OVERFLOWS)
def test_an_overflow_on_one_rank_stops_the_step_on_all(
    overflow: str, optimizer: str, expected: tuple[float, bool, bool]
) -> None:
    for found in OVERFLOWN.of(overflow, optimizer):
        if is_refused(found):
            continue
        assert (found["scale"], found["plain moved"], found["sharded moved"]) == expected


def test_float16_gradients_are_unscaled() -> None:
    for gradient, moved in run_ranks(runtime.scale_float16):
        assert gradient == 1.0
        assert moved


def test_a_scaler_without_a_process_group_is_a_clear_error() -> None:
    with pytest.raises(ProcessGroupError, match="its ranks agree"):
        grad_scaler("cpu")
    assert not grad_scaler("cpu", enabled=False).is_enabled()
