"""Replicas and tensor parallelism, which Composer's own FSDP2 has not, on four ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


pytestmark = [pytest.mark.composer, pytest.mark.slow]

HYBRID = {"data_parallel_replicate_degree": 2}
CASES = {
    "hybrid": Run(fsdp=HYBRID),
    "hybrid grad op": Run(fsdp={**HYBRID, "sharding_strategy": "SHARD_GRAD_OP"}, optimizer="adamw"),
    "hybrid groups": Run(fsdp={"sharding_strategy": "HYBRID_SHARD", "process_group": ("set2", "mod2")}),
}
MICRO = Run(fsdp=HYBRID, rows=3, trainer={"device_train_microbatch_size": 1})
PLAIN = Run(model="wide", in_pairs=True)
TENSOR = replace(PLAIN, tensor_parallel=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    folder = str(tmp_path_factory.mktemp("hybrid"))
    saving = {"save_folder": folder, "save_interval": "3ba", "load_path": None}
    hybrid = Run(fsdp={**HYBRID, "state_dict_type": "sharded"}, steps=6)
    saves = replace(hybrid, migrate=False, trainer=saving)
    loads = replace(hybrid, trainer={"load_path": f"{folder}/ep0-ba3"})
    pairs = [replace(run, migrate=migrate) for run in [*CASES.values(), MICRO] for migrate in (False, True)]
    return run_ranks(train_all, [*pairs, saves, loads, PLAIN, TENSOR], world_size=4, timeout=400)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_replicas_train_as_under_fsdp1(outcomes: list[list[dict[str, Any]]], case: int) -> None:
    for found in outcomes:
        before, after = found[2 * case : 2 * case + 2]
        assert "error" not in after, after["error"]
        assert after["losses"] == before["losses"]
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name


def test_microbatches_of_replicas_all_reduce_once(outcomes: list[list[dict[str, Any]]]) -> None:
    """FSDP1 all-reduced in every microbatch: the same sums in another order."""
    for found in outcomes:
        before, after = found[6:8]
        assert "error" not in after, after["error"]
        assert after["losses"] == pytest.approx(before["losses"], abs=1e-5)


def test_a_checkpoint_of_replicas_goes_on(outcomes: list[list[dict[str, Any]]]) -> None:
    for found in outcomes:
        before, after = found[8:10]
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        assert after["losses"] == before["losses"][3:]
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name


def test_tensor_parallelism_changes_rounding_only(outcomes: list[list[dict[str, Any]]]) -> None:
    for found in outcomes:
        plain, tensor = found[10:12]
        assert "error" not in plain, plain["error"]
        assert "error" not in tensor, tensor["error"]
        assert ("FM120", "mesh") in tensor["findings"]
        assert tensor["losses"] == pytest.approx(plain["losses"], abs=1e-5)
        assert tensor["parameters"].keys() == plain["parameters"].keys()
        for name, expected in plain["parameters"].items():
            assert torch.allclose(tensor["parameters"][name], expected, atol=1e-5), name
