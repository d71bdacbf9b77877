"""How tensors differ is said in numbers, for every type that has them."""

from __future__ import annotations

import math

import pytest
import torch

from fsdp_migrate.checkpoint_convert.verification.tensor_compare import TensorComparison, TensorDifference


pytestmark = pytest.mark.any_torch

NAN, INF = math.nan, math.inf


def compare(one: torch.Tensor, other: torch.Tensor, *, block: int = 2) -> TensorDifference | None:
    names = [str(tensor.dtype).removeprefix("torch.") for tensor in (one, other)]
    comparison = TensorComparison(names[0], names[1])
    for pair in zip(one.flatten().split(block), other.flatten().split(block), strict=True):
        blocks = [memoryview(bytearray(each.clone().view(torch.uint8).numpy().tobytes())) for each in pair]
        comparison.add(blocks[0], blocks[1])
    return comparison.result(tuple(one.shape))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_of_every_type(dtype: torch.dtype) -> None:
    one = torch.arange(6).reshape(2, 3).to(dtype)
    other = one.clone()
    assert compare(one, other) is None
    other[1, 0], other[1, 2] = 4, 1  # 3 -> 4 and 5 -> 1: in the second and the third block
    found = compare(one, other)
    assert found is not None
    assert (found.index, found.count, found.size, found.largest, found.num_nan) == ((1, 0), 2, 6, 4.0, 0)
    assert found.values is not None
    assert [float(value) for value in found.values] == [3.0, 4.0]


TOLD = [
    (torch.tensor([1.5]), torch.tensor([1.25]), "1 of 1 elements, by at most 0.25; the first is at [0]: 1.5"),
    (
        torch.tensor(0.0),
        torch.tensor(-0.0),
        "1 of 1 elements, by at most 0; the first is at []: 0.0 and -0.0",
    ),
    (torch.tensor([0.0, NAN]), torch.tensor([2.0, 1.0]), "by at most 2, with NaN in 1; the first is at [0]"),
    (
        torch.tensor([NAN]),
        torch.tensor([1.0]),
        "1 of 1 elements, with NaN in 1; the first is at [0]: nan and",
    ),
    (torch.tensor([INF]), torch.tensor([1.0]), "by at most inf; the first is at [0]: inf and 1.0"),
    (torch.tensor([True]), torch.tensor([False]), "elements; the first is at [0]: True and False"),
    (torch.tensor([2**63 - 1]), torch.tensor([-(2**63)]), "by at most 1.84e+19; the first"),
    (torch.tensor([2**62]), torch.tensor([2**62 + 1]), "by at most 1; the first"),
    (torch.tensor([3 + 4j]), torch.tensor([0j]), "by at most 5; the first is at [0]: (3+4j) and 0j"),
    (
        torch.tensor([1.0]).to(torch.float8_e4m3fn),
        torch.tensor([2.0]).to(torch.float8_e4m3fn),
        "differs in 1 of 1 elements; the first is at [0]",
    ),
]


@pytest.mark.parametrize(("one", "other", "words"), TOLD)
def test_what_is_told(one: torch.Tensor, other: torch.Tensor, words: str) -> None:
    assert words in str(compare(one, other))


def test_the_second_is_compared_with_the_cast_of_the_first() -> None:
    one = torch.tensor([1.0, 2.0, NAN, 1.001])
    assert compare(one, one.to(torch.bfloat16)) is None
    found = compare(one, torch.tensor([1.0, 2.5, NAN, 1.0], dtype=torch.bfloat16))
    assert found is not None
    assert (found.index, found.count, found.largest) == ((1,), 1, 0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_difference_is_seen_beside_the_numbers_around_it(dtype: torch.dtype) -> None:
    """One number of a large tensor, itself near 0, may differ by all of itself, and be rounding."""
    one = torch.tensor([100, 1, 7, 7]).to(dtype)
    other = one.clone()
    other[1] = 2
    found = compare(one, other)
    assert found is not None
    assert (found.largest, found.scale) == (1.0, 100.0)


def test_what_is_not_finite_is_no_measure() -> None:
    found = compare(torch.tensor([INF, 1.0]), torch.tensor([INF, 2.0]))
    assert found is not None
    assert found.scale == 1.0
    unknown = compare(torch.tensor([True, False]), torch.tensor([True, True]))
    assert unknown is not None
    assert unknown.scale is None
