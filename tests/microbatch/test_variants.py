"""Models that are not the plain case: units in units, frozen, checkpointed, offloaded, called by keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.microbatch import microbatch_variants_bodies as bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from fsdp_migrate.microbatch import Comms
    from tests.rank_bodies.parity import Tensors


COUNTS = (1, 3)


@pytest.fixture(scope="module")
def found() -> list[dict[tuple[str, str], Tensors]]:
    return run_ranks(bodies.gradients_of_all, COUNTS, timeout=400)


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensors]:
    return run_ranks(bodies.unsharded_gradients, COUNTS, world_size=1)[0]


@pytest.mark.parametrize("comms", ["auto", "last"])
@pytest.mark.parametrize("name", sorted(bodies.VARIANTS))
def test_gradients_are_those_of_an_unsharded_model(
    name: str,
    comms: Comms,
    found: list[dict[tuple[str, str], Tensors]],
    expected: dict[str, Tensors],
) -> None:
    for of_rank in found:
        assert of_rank[name, comms].keys() == expected[name].keys()
        for fqn, grad in expected[name].items():
            torch.testing.assert_close(of_rank[name, comms][fqn], grad, rtol=0, atol=1e-7)


@pytest.fixture(scope="module")
def retries() -> list[dict[str, tuple[int, int, bool, bool, bool]]]:
    return run_ranks(bodies.retries, timeout=400)


@pytest.mark.parametrize("name", sorted(bodies.VARIANTS))
def test_a_retry_leaves_no_trace(
    name: str, retries: list[dict[str, tuple[int, int, bool, bool, bool]]]
) -> None:
    """Neither in gradients, parameters and momenta, nor in the hooks of modules."""
    assert [of_rank[name] for of_rank in retries] == [(2, 1, True, True, True)] * 2


@pytest.mark.parametrize(
    ("comms", "strategy", "gathers", "reductions"),
    [
        # Units reshard after forward, but for the root; so seven gathers a microbatch.
        ("auto", "FULL_SHARD", 21, 12),
        ("every", "FULL_SHARD", 21, 12),
        ("last", "FULL_SHARD", 21, 4),
        ("auto", "SHARD_GRAD_OP", 12, 12),
    ],
)
def test_each_microbatch_communicates_what_it_must(
    comms: Comms, strategy: str, gathers: int, reductions: int
) -> None:
    for counts in run_ranks(bodies.collectives, comms, strategy, 3):
        assert counts == {"all-gather": gathers, "reduce-scatter": reductions, "all-reduce": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("comms", "scatters", "reductions"), [("auto", 12, 4), ("last", 4, 4)])
def test_replicas_all_reduce_in_the_last_microbatch_only(
    comms: Comms, scatters: int, reductions: int
) -> None:
    for counts in run_ranks(bodies.collectives, comms, "HYBRID_SHARD", 3, world_size=4, timeout=400):
        assert (counts["reduce-scatter"], counts["all-reduce"]) == (scatters, reductions)
