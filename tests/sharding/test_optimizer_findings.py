"""Every optimizer of torch's trains as under FSDP1, or a finding says that it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.sharding import optimizer_kinds_bodies as optimizer_kinds


@pytest.fixture(scope="module")
def compared() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(optimizer_kinds.compare_all)


@pytest.mark.parametrize("name", optimizer_kinds.OPTIMIZERS)
def test_an_optimizer_trains_as_under_fsdp1_or_is_told(
    compared: list[dict[str, dict[str, Any]]], name: str
) -> None:
    for rank in compared:
        found = rank[name]
        kind = name.partition(",")[0]
        if found["codes"] == ["FM115"]:
            assert kind in {"Adafactor", "LBFGS", "Rprop"}
        elif found["codes"] == ["FM114"]:
            assert kind == "Muon"
            assert found["prepared"] == pytest.approx(found["plain"], rel=1e-3)
        elif found["codes"] == ["FM113"]:
            assert name in {"SGD, fused", "Adagrad, fused", "Rprop, foreach"}
            assert found["prepared"] == pytest.approx(found["FSDP1"], rel=1e-6)
        else:
            assert found["codes"] == []
            assert found["prepared"] == found["FSDP1"]
