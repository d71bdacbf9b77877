"""Casts have the bits that torch gives, and every value that becomes infinite is counted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fsdp_migrate.checkpoint_convert.formats.cast import Caster


VALUES = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 65504.0, 65520.0, -1e30, 3.39e38, -3.4e38]),
    st.floats(width=32),
)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=40), st.data())
def test_bits_and_infinities(values: list[float], data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"]))
    target = data.draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    tensor = torch.tensor(values, dtype=torch.float64).to(getattr(torch, source))
    caster = Caster(source, target)
    half = len(values) // 2
    found = b""
    for block in filter(len, (tensor[:half], tensor[half:])):
        found += caster.cast(memoryview(bytearray(block.view(torch.uint8).numpy().tobytes())))
    wanted = tensor.to(getattr(torch, target))
    result = torch.frombuffer(bytearray(found), dtype=wanted.dtype)
    # Which NaN torch makes of a NaN depends on how many values it casts at once.
    is_nan = wanted.isnan()
    assert torch.equal(result.isnan(), is_nan)
    bits = torch.int32 if target == "float32" else torch.int16
    assert torch.equal(result.view(bits)[~is_nan], wanted.view(bits)[~is_nan])
    counts = zip(tensor.tolist(), wanted.tolist(), strict=True)
    assert caster.overflows == sum(math.isfinite(a) and math.isinf(b) for a, b in counts)


@pytest.mark.parametrize("source", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_every_value_of_eight_bits(source: str) -> None:
    block = bytearray(range(256))
    wanted = torch.frombuffer(block, dtype=getattr(torch, source)).to(torch.float16)
    caster = Caster(source, "float16")
    assert caster.cast(memoryview(block)) == wanted.view(torch.uint8).numpy().data
    assert caster.overflows == 0
