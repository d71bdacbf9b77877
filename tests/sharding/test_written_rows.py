"""An index of a sharded gradient: FSDP1's was of a flat part, a DTensor's of rows, and often in vain."""

from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding import written_rows_bodies as bodies


NEWER = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Older ones refuse every row of a DTensor, and stretches of rows alone are lost."""


def test_what_is_written_to_rows_is_lost_or_refused() -> None:
    (found, other) = run_ranks(bodies.outcomes)
    assert found == other
    lost = {name for name, outcome in found.items() if outcome == "lost"}
    assert {"x[a:b].zero_()", "x.narrow(0, a, n).zero_()"} <= lost
    # Of the whole, and of no row, what is written counts.
    whole = {"x[...] = like it", "x[:] = like it", "x[:].zero_()"}
    assert {found[name] for name in whole} == {"done"}
    assert {name for name, outcome in found.items() if outcome == "done"} <= whole | {"x[...].zero_()"}
    # What is called refused in sources is refused by each torch.
    sure = {"x[...] = 0", "x[a:b] = 0", "x[..., 0] = 0", "x[i] = plain", "x[x > 0] = 0", "x[[i, j]] = 0"}
    sure |= {"x[[i, j]]", "x[x > 0]"}
    assert {found[name] for name in sure} == {"refused"}
    if NEWER:
        assert {"x[i] = like it", "x[i] *= 0", "x[i].zero_()", "x[i, j] = 0"} <= lost


def test_a_masked_gradient_trains_otherwise_and_as_meant_where_the_advice_is_taken() -> None:
    found, *_ = run_ranks(bodies.masked)
    whole, flat, advised = found["one process"], found["FSDP1"], found["as advised"]
    assert advised == pytest.approx(whole, rel=1e-5)
    assert flat != pytest.approx(whole, rel=1e-5)
    if NEWER:
        assert found["FSDP2"] != pytest.approx(whole, rel=1e-5)
        assert found["FSDP2"] != pytest.approx(flat, rel=1e-5)
    else:
        assert found["FSDP2"] == "refused"
