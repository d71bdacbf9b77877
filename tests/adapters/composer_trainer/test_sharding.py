"""Replicas and tensor parallelism, which Composer's own FSDP2 has not, on four ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
PARTLY = Run(callback={"reshard_after_forward": 2}, optimizer="adamw")
WHOLLY = Run(optimizer="adamw")
MICRO = Run(fsdp=HYBRID, rows=3, trainer={"device_train_microbatch_size": 1})
PLAIN = Run(model="wide", in_pairs=True)
TENSOR = replace(PLAIN, tensor_parallel=True)
SHARDED, FULL = {"state_dict_type": "sharded"}, {"state_dict_type": "full"}


def tensor_runs(root: Path) -> dict[str, Run]:
    """Return runs of tensor parallelism: under FSDP1 and with the callback, saving and loading, both ways."""
    run = replace(TENSOR, steps=4, optimizer="adamw")

    def change(name: str, fsdp: dict[str, Any], *, migrate: bool = True, **more: Any) -> Run:
        saving = {"save_folder": str(root / name), "save_interval": "2ba"} if name else {}
        return replace(run, fsdp=fsdp, migrate=migrate, trainer={**saving, **more})

    return {
        "fsdp1": change("fsdp1", SHARDED, migrate=False),
        "fsdp1 full": change("fsdp1_full", FULL, migrate=False),
        "saves": change("ours", SHARDED),
        "saves full": change("ours_full", FULL),
        "loads": change("", SHARDED, load_path=str(root / "ours" / "ep0-ba2")),
        "loads full": change("", FULL, load_path=str(root / "ours_full" / "ep0-ba2-rank0.pt")),
        "loads fsdp1's": change("", SHARDED, load_path=str(root / "fsdp1" / "ep0-ba2")),
        "loads fsdp1's full": change("", FULL, load_path=str(root / "fsdp1_full" / "ep0-ba2-rank0.pt")),
    }


TENSOR_NAMES = tuple(tensor_runs(Path()))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    folder, root = str(tmp_path_factory.mktemp("hybrid")), tmp_path_factory.mktemp("tensor")
    saving = {"save_folder": folder, "save_interval": "3ba", "load_path": None}
    hybrid = Run(fsdp={**HYBRID, "state_dict_type": "sharded"}, steps=6)
    saves = replace(hybrid, migrate=False, trainer=saving)
    loads = replace(
        hybrid, trainer={**saving, "save_folder": f"{folder}/ours", "load_path": f"{folder}/ep0-ba3"}
    )
    again = replace(hybrid, trainer={"load_path": f"{folder}/ours/ep0-ba6", "max_duration": "7ba"})
    pairs = [replace(run, migrate=migrate) for run in [*CASES.values(), MICRO] for migrate in (False, True)]
    runs = [*pairs, saves, loads, PLAIN, TENSOR, again, PARTLY, WHOLLY, *tensor_runs(root).values()]
    return run_ranks(train_all, runs, world_size=4, timeout=500)


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
        again = found[12]
        assert "error" not in again, again["error"]
        assert len(again["losses"]) == 1


@pytest.mark.parametrize("case", TENSOR_NAMES[1:])
def test_tensor_parallelism_trains_saves_and_loads_as_under_fsdp1(
    outcomes: list[list[dict[str, Any]]], case: str
) -> None:
    for found in outcomes:
        runs = dict(zip(TENSOR_NAMES, found[-len(TENSOR_NAMES) :], strict=True))
        before, after = runs["fsdp1"], runs[case]
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        assert len(before["losses"]) == 4
        assert after["losses"] == before["losses"][2 if "loads" in case else 0 :]
        if "fsdp1 full" not in case:  # `whole` shows its own shards of a tensor-parallel parameter
            for name, expected in runs["saves"]["parameters"].items():
                assert torch.equal(after["parameters"][name], expected), name


def test_parameters_kept_on_some_ranks_are_the_same(outcomes: list[list[dict[str, Any]]]) -> None:
    for found in outcomes:
        partly, wholly = found[13:15]
        assert "error" not in partly, partly["error"]
        assert partly["losses"] == wholly["losses"]
        for name, expected in wholly["parameters"].items():
            assert torch.equal(partly["parameters"][name], expected), name


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
