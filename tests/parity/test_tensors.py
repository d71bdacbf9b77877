"""How far two tensors are apart: counted in representable numbers, by bits."""

from __future__ import annotations

import math

import pytest
import torch

from fsdp_migrate.parity.report import Difference, what_differs
from fsdp_migrate.parity.tensors import Gap, find_gap


pytestmark = pytest.mark.any_torch

BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}


@pytest.mark.parametrize("dtype", BITS)
def test_neighbours_are_one_ulp_apart_across_zero_too(dtype: torch.dtype) -> None:
    smallest = torch.tensor([1], dtype=BITS[dtype]).view(dtype)
    for one, other, ulps in ((smallest, -smallest, 2), (smallest, smallest * 0, 1)):
        gap = find_gap(one, other)
        assert gap is not None
        assert (gap.ulps, gap.index, gap.count) == (ulps, (0,), 1)


@pytest.mark.parametrize(
    ("one", "other", "is_counted"),
    [
        ([0.02, 1e-6], [0.02, -1e-6], False),  # 1.8 billion lie between them
        ([0.02, 1e-6], [0.02, 1.5e-6], False),
        ([0.02, 0.0], [0.02, 1e-9], False),
        ([1e-6], [-1e-6], False),
        ([0.02, 1e-6], [0.02, 1.000001e-6], True),
        ([0.02, 1e-6], [0.02000001, 1e-6], True),
        ([0.02], [0.03], True),
    ],
)
def test_near_zero_the_difference_is_said_and_no_ulps(
    one: list[float], other: list[float], *, is_counted: bool
) -> None:
    gap = find_gap(torch.tensor(one), torch.tensor(other))
    assert gap is not None
    assert (gap.ulps is not None) is is_counted
    found = Difference(step=1, stage="parameter", name="a", module="", rank=0, gap=gap)
    largest = max(abs(a - b) for a, b in zip(one, other, strict=True))
    assert ("ulp" in what_differs(found)) is is_counted
    assert (f", by {largest:.2g}" in what_differs(found)) is not is_counted


def test_what_is_the_same_has_no_gap() -> None:
    assert find_gap(torch.tensor([math.nan, math.inf, 0.0]), torch.tensor([math.nan, math.inf, -0.0])) is None
    assert find_gap(None, None) is None
    assert find_gap(torch.zeros(0, 3), torch.zeros(0, 3)) is None


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (torch.zeros(2), None, "only under FSDP1"),
        (None, torch.zeros(2), "only under FSDP2"),
        (torch.zeros(2), torch.zeros(3), "its shape is [2] under FSDP1, [3] under FSDP2"),
        (torch.zeros(2), torch.zeros(2).half(), "it is float32 under FSDP1, float16 under FSDP2"),
    ],
)
def test_what_is_no_value_is_said(one: torch.Tensor | None, other: torch.Tensor | None, words: str) -> None:
    assert find_gap(one, other) == Gap(words=words)


def test_infinite_and_whole_numbers() -> None:
    gap = find_gap(torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 1.0]))
    assert gap is not None
    assert (gap.ulps, gap.ratio, gap.as_dict()["fsdp1"]) == (None, None, "nan")
    gap = find_gap(torch.tensor([[1, 2]]), torch.tensor([[1, 5]]))
    assert gap is not None
    assert (gap.index, gap.fsdp1, gap.fsdp2, gap.largest, gap.ulps) == ((0, 1), 2.0, 5.0, 3.0, None)


def test_a_common_factor_is_found_and_only_that() -> None:
    one = torch.tensor([1.0, -3.0, 0.0])
    doubled, other = find_gap(one, one * 2), find_gap(one, one + 1)
    assert doubled is not None
    assert other is not None
    assert (doubled.ratio, other.ratio) == (2.0, None)
