"""Gradients of microbatches are those of FSDP1 and of an unsharded model, whatever is communicated when."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.errors import ConfigError, ModelError, ProcessGroupError
from fsdp_migrate.microbatch import microbatches
from fsdp_migrate.runtime import end_process_group
from tests.rank_bodies import microbatches as bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from fsdp_migrate.microbatch import Comms
    from tests.rank_bodies.parity import Tensors


EVEN = ((2, 2), (3, 3))
UNEVEN = ((0, 2), (3, 1), (2, 2), (1, 0))
SUMS = {"every": "microbatches", "last": "ranks", "auto": "microbatches"}


def check(found: list[bodies.Steps], expected: list[Tensors], *, tolerance: float = 0.0) -> None:
    for steps in found:
        assert len(steps.gradients) == len(expected)
        for step, wanted in zip(steps.gradients, expected, strict=True):
            assert step.keys() == wanted.keys()
            for name, value in wanted.items():
                torch.testing.assert_close(step[name], value, rtol=0, atol=tolerance)


@cache
def unsharded(sums_over: str, counts: object) -> list[Tensors]:
    return run_ranks(bodies.train_unsharded, sums_over, counts, world_size=1)[0]


@pytest.mark.parametrize("comms", ["every", "last", "auto"])
def test_gradients_are_those_of_an_unsharded_model_when_ranks_have_different_numbers(comms: Comms) -> None:
    found = run_ranks(bodies.train, comms, UNEVEN)
    check(found, unsharded(SUMS[comms], UNEVEN))
    assert [steps.bodies for steps in found] == [sum(step[rank] for step in UNEVEN) for rank in (0, 1)]


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "NO_SHARD", "forward prefetch"])
def test_ranks_that_join_in_do_so_under_every_strategy(strategy: str) -> None:
    sums_over = "ranks" if strategy == "NO_SHARD" else "microbatches"  # replicas reduce in the last only
    check(run_ranks(bodies.train, "auto", UNEVEN, strategy), unsharded(sums_over, UNEVEN))


@pytest.mark.parametrize("comms", ["last", "auto"])
def test_votes_change_nothing(comms: Comms) -> None:
    """In bf16 the zeros of those that join in have another dtype than what waits for a reduction."""
    found = run_ranks(bodies.train, comms, UNEVEN, "bf16", True)
    check(found, run_ranks(bodies.train, comms, UNEVEN, "bf16")[0].gradients)
    check(found, unsharded(SUMS[comms], UNEVEN), tolerance=2e-3)


@pytest.mark.parametrize(
    ("comms", "strategy"),
    [("every", "FULL_SHARD"), ("auto", "FULL_SHARD"), ("auto", "bf16"), ("last", "FULL_SHARD")],
)
def test_gradients_are_those_of_fsdp1(comms: Comms, strategy: str) -> None:
    expected = run_ranks(bodies.train_fsdp1, EVEN, strategy, comms == "last")
    check(run_ranks(bodies.train, comms, EVEN, strategy), expected[0].gradients)


@pytest.mark.slow
@pytest.mark.parametrize("comms", ["every", "last", "auto"])
def test_replicas_sum_as_they_should(comms: Comms) -> None:
    counts = ((2, 1, 0, 3), (2, 2, 2, 2))
    found = run_ranks(bodies.train, comms, counts, "HYBRID_SHARD", world_size=4, timeout=400)
    check(found, unsharded("ranks" if comms == "last" else "replicas", counts))


@pytest.mark.slow
def test_auto_is_fsdp1_with_replicas() -> None:
    """Where sums would wait in bf16 replicas all-reduce each time, to the last bit as FSDP1 did."""
    counts = ((3, 3, 3, 3), (2, 2, 2, 2))
    for strategy, tolerance in (("HYBRID_SHARD", 1e-8), ("HYBRID_SHARD, reduced in bf16", 0.0)):
        expected = run_ranks(bodies.train_fsdp1, counts, strategy, False, world_size=4, timeout=400)
        found = run_ranks(bodies.train, "auto", counts, strategy, world_size=4, timeout=400)
        check(found, expected[0].gradients, tolerance=tolerance)


@pytest.mark.slow
def test_gathers_from_fewer_ranks_are_joined() -> None:
    counts = (2, 0, 1, 1)
    for found in run_ranks(bodies.gathered_from_two_of_four, counts, world_size=4, timeout=400):
        check([bodies.Steps([found])], unsharded("microbatches", (counts,)), tolerance=1e-7)


def test_units_of_several_modules_are_joined() -> None:
    counts = (1, 3)
    expected = run_ranks(bodies.tied_unsharded, counts, world_size=1)[0]
    for found, num_units in run_ranks(bodies.tied_group, counts):
        assert num_units == 3
        check([bodies.Steps([found])], [expected])


def test_buffers_of_ranks_that_join_in_are_left_alone() -> None:
    assert run_ranks(bodies.batch_norm_counters, (1, 3)) == [[1, 1], [3, 3]]


@pytest.mark.parametrize(
    ("comms", "strategy", "expected"),
    [
        ("every", "FULL_SHARD", [(True, False), (True, False), (True, True)]),
        ("auto", "FULL_SHARD", [(True, False), (True, False), (True, True)]),
        ("last", "FULL_SHARD", [(False, False), (False, False), (True, True)]),
        ("auto", "reduced in bf16", [(True, True), (True, True), (True, True)]),
        ("every", "reduced in bf16", [(True, False), (True, False), (True, True)]),
    ],
)
def test_settings_are_made_and_put_back(
    comms: Comms, strategy: str, expected: list[tuple[bool, bool]]
) -> None:
    for found, after_loop, after_error in run_ranks(bodies.settings_within, comms, strategy, 3):
        assert found == expected
        assert after_loop
        assert after_error


def test_a_break_on_every_rank_drops_the_batch() -> None:
    assert run_ranks(bodies.broken_off_by_break) == [(True, True)] * 2


def test_nothing_is_replaced_without_votes() -> None:
    """One vote for the numbers is all that a batch costs."""
    assert run_ranks(bodies.what_is_replaced) == [([True] * 6, 1)] * 2


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "bf16"])
def test_what_last_holds_is_logged(strategy: str) -> None:
    (records, held), (others, _) = run_ranks(bodies.bytes_held, strategy)
    assert held > 0
    assert records == [
        f"comms='last' holds unsharded gradients between microbatches: {held / 1e6:.1f} MB on each rank."
    ]
    assert others == []


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="`comms` is 'never'; expected one of 'auto', 'every', 'last'"):
        microbatches(nn.Linear(1, 1), [], comms="never")  # type: ignore[arg-type]
    with pytest.raises(ProcessGroupError, match="Start with torchrun"):
        microbatches(nn.Linear(1, 1), [])


def test_a_model_that_is_not_sharded_is_an_error() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ModelError, match="`Linear` holds no unit of FSDP2"):
            next(microbatches(nn.Linear(1, 1), [1]))
    finally:
        end_process_group()


@pytest.mark.slow
def test_replicas_sum_what_only_some_microbatches_use() -> None:
    """Up to 2.14 torch loses what the last microbatch does not reach, and adds up unlike parameters."""
    waited = run_ranks(bodies.unlike_microbatches, "every", world_size=4, timeout=400)
    at_last = run_ranks(bodies.unlike_microbatches, "last", world_size=4, timeout=400)
    assert "blocks.0.up.weight" in at_last[0]
    check([bodies.Steps([found]) for found in waited], [at_last[0]], tolerance=1e-6)


def test_a_loop_left_in_a_variable_gives_way_to_the_next() -> None:
    for are_back, message in run_ranks(bodies.left_in_a_variable):
        assert are_back
        assert message.startswith("Another loop over microbatches of the same model began")
