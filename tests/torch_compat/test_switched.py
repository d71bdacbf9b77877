"""``requires_grad`` switched during training: as under FSDP1 bit for bit, or as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ranks import run_ranks
from tests.torch_compat import switched_bodies as switching
from tests.torch_compat.switched_bodies import Run


RUNS = [
    *(Run(schedule, "bf16, fp32", "every") for schedule in switching.SCHEDULES),
    *(Run(schedule, optimizer="added") for schedule in ("thawed later", "a part thawed", "the root thawed")),
    Run("by turns", optimizer="AdamW", parts="no_sync"),
    Run("a part by turns", optimizer="AdamW", parts="microbatches"),
    Run("all but the head, thawed", "bf16", "no_sync"),
    Run("the root thawed", evaluates=True),
    Run("a part by turns", strategy="SHARD_GRAD_OP", evaluates=True),
    Run("frozen later", "bf16, fp32", strategy="SHARD_GRAD_OP", evaluates=True),
    Run("by turns", strategy="NO_SHARD", evaluates=True),
    Run("thawed later", strategy="SHARD_GRAD_OP", optimizer="added", evaluates=True),
]
FLAT_RUNS = [Run("frozen later"), Run("thawed later", "bf16, fp32"), Run("by turns", "bf16", "every")]
# What FSDP1 failed at or did wrong: switching between microbatches, or between a forward with gradients and
# that of the step; and a root of NO_SHARD.
OWN_RUNS = [
    Run("frozen later", parts="no_sync", within=True),
    Run("a part by turns", parts="every", within=True),
    Run("the root thawed", strategy="NO_SHARD"),
    Run("a part by turns", strategy="SHARD_GRAD_OP", evaluates=True, gradients=True),
]


def outcomes(runs: list[Run], reference: str) -> list[tuple[Run, Any, Any]]:
    """Return each run's outcomes, on each rank: the reference's and that of the prepared model."""
    ranks = run_ranks(switching.compare, runs, reference)
    return [
        (run, rank[index][reference], rank[index]["prepared"])
        for rank in ranks
        for index, run in enumerate(runs)
    ]


@pytest.mark.parametrize(("runs", "reference"), [(RUNS, "FSDP1"), (FLAT_RUNS, "FSDP1, flat")])
def test_switching_trains_as_under_fsdp1(runs: list[Run], reference: str) -> None:
    for run, expected, found in outcomes(runs, reference):
        assert not isinstance(found, str), (run, found)
        assert found[0] == expected[0], run
        assert expected[1].keys() == found[1].keys()
        assert all(torch.equal(found[1][name], value) for name, value in expected[1].items()), run


def test_switching_where_fsdp1_failed_trains_as_one_process() -> None:
    for run, expected, found in outcomes(OWN_RUNS, "one process"):
        assert found[0] == pytest.approx(expected[0], abs=1e-5), run
        for name, value in expected[1].items():
            torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-5)


def test_an_optimizer_that_is_given_gathered_parameters_is_an_error_at_its_step() -> None:
    runs = [Run("thawed later", strategy="SHARD_GRAD_OP", optimizer="added", evaluates=True, gradients=True)]
    for _, _, found in outcomes(runs, "one process"):
        assert found.startswith(
            "OptimizerError: This SGD holds 6 whole parameters, such as `blocks.0.norm.weight`"
        )
        assert "Call `reshard()` of every FSDPModule" in found


def test_what_is_set_on_shards_while_parameters_are_whole_counts_too() -> None:
    for found in run_ranks(switching.set_on_shards):
        assert found == {
            "frozen, 0": [False, True],
            "frozen, 1": [False, True],
            "sharded again": [True, False],
            "trained": [True, False],
        }
