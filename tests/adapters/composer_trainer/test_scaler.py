"""Float16's gradient scaler: one rank overflows, and all skip the step, as under FSDP1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.composer

FULL = {"mixed_precision": "FULL", "state_dict_type": "sharded"}
LOW = {"mixed_precision": {"param_dtype": "fp16", "reduce_dtype": "fp32"}}
CASES = {
    "in a shard": Run(fsdp=FULL, precision="amp_fp16", overflows=1, steps=4),
    "in a layer that is ignored": Run(model="ignored", fsdp=FULL, precision="amp_fp16", overflows=1, steps=4),
    "with float16": Run(fsdp=LOW, precision="amp_fp16", overflows=2, steps=4),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    root: Path = tmp_path_factory.mktemp("scaler")
    saving = {"save_folder": str(root), "save_interval": "2ba"}
    first = CASES["in a shard"]
    runs = {
        **{f"{name}, fsdp1": replace(run, migrate=False) for name, run in CASES.items()},
        **CASES,
        "saves": replace(first, trainer={**saving, "save_folder": str(root / "ours")}),
        "saves, fsdp1": replace(first, migrate=False, trainer={**saving, "save_folder": str(root / "fsdp1")}),
        "from fsdp1": replace(first, trainer={"load_path": str(root / "fsdp1" / "ep0-ba2")}),
        "to fsdp1": replace(first, migrate=False, trainer={"load_path": str(root / "ours" / "ep0-ba2")}),
        "to composer's fsdp2": replace(
            first,
            migrate=False,
            own_fsdp2=True,
            fsdp={"mixed_precision": "FULL"},
            trainer={"load_path": str(root / "ours" / "ep0-ba2")},
        ),
    }
    ranks = run_ranks(train_all, list(runs.values()), timeout=400)
    return {name: [rank[number] for rank in ranks] for number, name in enumerate(runs)}


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_skip_the_step_and_lower_the_scale(
    outcomes: dict[str, list[dict[str, Any]]], case: str
) -> None:
    for before, after in zip(outcomes[f"{case}, fsdp1"], outcomes[case], strict=True):
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        assert after["losses"] == before["losses"]
        assert len(set(after["losses"])) == len(after["losses"]) == 4
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name
        (state,), (expected,) = after["scaler"].values(), before["scaler"].values()
        assert state == expected
        assert state["scale"] == 2.0**15
        assert list(after["scaler"]) == ["AgreeingGradScaler"]


@pytest.mark.parametrize("case", ["from fsdp1", "to fsdp1", "to composer's fsdp2"])
def test_the_scale_goes_along_with_the_run(outcomes: dict[str, list[dict[str, Any]]], case: str) -> None:
    """Composer's names for the scaler differ between its FSDP versions, so that by itself it forgets it."""
    for before, after in zip(outcomes["saves, fsdp1"], outcomes[case], strict=True):
        assert "error" not in after, after["error"]
        assert after["losses"] == before["losses"][2:]
        assert list(after["scaler"].values()) == list(before["scaler"].values())
