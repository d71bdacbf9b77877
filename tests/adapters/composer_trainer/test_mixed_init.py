"""A model that only rank 0 has made, the others on the meta device, trains as one that all have made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer


MIXED = {"sync_module_states": True}
PAIRS = {
    "all": (Run(), Run(model="net mixed", fsdp=MIXED)),
    "an adapter on a frozen model": (
        Run(model="lora", optimizer="adamw", migrate=False),
        Run(model="lora mixed", optimizer="adamw", fsdp=MIXED),
    ),
    "one module by two names": (Run(), Run(model="net again mixed", fsdp=MIXED)),
    "by its own function, everywhere": (Run(model="filled"), Run(model="filled everywhere")),
    "tied": (Run(model="tied", migrate=False), Run(model="tied mixed", fsdp=MIXED)),
}


@pytest.fixture(scope="module")
def outcomes() -> list[list[dict[str, Any]]]:
    return run_ranks(train_all, [run for pair in PAIRS.values() for run in pair], timeout=400)


@pytest.mark.parametrize("case", PAIRS)
def test_mixed_init_trains_as_real_models_do(outcomes: list[list[dict[str, Any]]], case: str) -> None:
    for found in outcomes:
        real, mixed = found[2 * list(PAIRS).index(case) :][:2]
        assert "error" not in real, real["error"]
        assert "error" not in mixed, mixed["error"]
        assert mixed["losses"] == real["losses"]
        assert len(mixed["losses"]) == 3
        assert mixed["parameters"].keys() == real["parameters"].keys()
        assert mixed["optimizer"].keys() == (real["optimizer"] or mixed["optimizer"]).keys()
        for name, value in real["parameters"].items():
            assert torch.equal(mixed["parameters"][name], value), name


def test_what_is_frozen_has_no_state_and_does_not_move(outcomes: list[list[dict[str, Any]]]) -> None:
    for found in outcomes:
        mixed = found[2 * list(PAIRS).index("an adapter on a frozen model") + 1]
        assert {name.rpartition(".weight.")[0] for name in mixed["optimizer"]} == {
            f"net.blocks.{block}.up.{part}" for block in range(2) for part in ("up", "down")
        }
