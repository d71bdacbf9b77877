"""An unchanged Trainer call with the callback trains as it did under FSDP1, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer

CASES: dict[str, Run] = {
    "sgd": Run(),
    "adamw": Run(optimizer="adamw", warmup=True),
    "decoupled_adamw": Run(optimizer="decoupled_adamw", fsdp={"sharding_strategy": "SHARD_GRAD_OP"}),
    "microbatches": Run(rows=3, trainer={"device_train_microbatch_size": 1}, optimizer="decoupled_sgd"),
    "bf16": Run(
        fsdp={"mixed_precision": dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "bf16")}
    ),
    "bf16_reduced_in_fp32": Run(
        fsdp={"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}, "backward_prefetch": "NONE"}
    ),
    "checkpointing": Run(model="fn", fsdp={"activation_checkpointing": True}),
    "checkpointing_offload": Run(
        model="fn",
        fsdp={
            "activation_checkpointing": True,
            "activation_checkpointing_reentrant": False,
            "activation_cpu_offload": True,
        },
    ),
    "two_children": Run(model="two"),
    "no_shard": Run(fsdp={"sharding_strategy": "NO_SHARD"}),
    "flat": Run(fsdp={"use_orig_params": False}, optimizer="adamw"),
    "forward_prefetch": Run(fsdp={"forward_prefetch": True}),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Every case, by rank: under FSDP1, and with the callback."""
    runs = [replace(run, migrate=migrate) for run in CASES.values() for migrate in (False, True)]
    ranks = run_ranks(train_all, runs, timeout=400)
    pairs = [list(zip(found[::2], found[1::2], strict=True)) for found in ranks]
    return {name: [rank[number] for rank in pairs] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("case", sorted(CASES))
def test_losses_and_parameters_are_those_of_fsdp1(
    outcomes: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]], case: str
) -> None:
    for before, after in outcomes[case]:
        assert len(before["losses"]) >= 3
        assert after["losses"] == before["losses"]
        assert list(after["parameters"]) == list(before["parameters"])
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name
