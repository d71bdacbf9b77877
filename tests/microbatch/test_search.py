"""A batch that does not fit is run again, as if nothing had happened; and how it is cut."""

from __future__ import annotations

import pytest
import torch

from fsdp_migrate.errors import MicrobatchError
from fsdp_migrate.microbatch.search import split_rows
from tests.rank_bodies import microbatch_failures as bodies
from tests.ranks import run_ranks


def check(found: list[bodies.Retry]) -> None:
    assert [retry.went_off for retry in found] == [0] * (len(found) - 1) + [1]
    for retry in found:
        assert (retry.size, retry.num_retries) == (2, 1)
        assert retry.outputs == retry.expected_outputs
        assert len(retry.outputs) == 4
        assert retry.same_gradients
        assert retry.same_buffers
        assert retry.same_later


@pytest.fixture(scope="module")
def retries() -> list[dict[str, bodies.Retry]]:
    return run_ranks(bodies.retry_everywhere, timeout=400)


@pytest.mark.parametrize("place", sorted(bodies.PLACES))
def test_a_batch_that_ran_out_of_memory_is_run_in_smaller_microbatches(
    place: str, retries: list[dict[str, bodies.Retry]]
) -> None:
    check([of_rank[place] for of_rank in retries])


@pytest.mark.parametrize(
    ("place", "strategy", "comms"),
    [
        ("backward of the first block", "FULL_SHARD", "last"),
        ("before the first reduction", "bf16", "last"),
        ("backward of the head", "NO_SHARD", "auto"),
        ("forward of the head", "SHARD_GRAD_OP", "every"),
        ("backward of the second block", "forward prefetch", "every"),
    ],
)
def test_what_waits_for_a_reduction_is_dropped(place: str, strategy: str, comms: str) -> None:
    check(run_ranks(bodies.retry, place, strategy, comms))


@pytest.mark.slow
def test_replicas_stop_and_go_on_together() -> None:
    check(run_ranks(bodies.retry, "before the last reduction", "HYBRID_SHARD", world_size=4, timeout=400))


def test_buffers_and_random_numbers_are_put_back() -> None:
    assert run_ranks(bodies.retry_with_state) == [(True, True)] * 2


class Batch(dict[str, torch.Tensor]):
    """A mapping of a class of its own, as tokenizers return."""


def test_batches_are_cut_whatever_holds_them() -> None:
    rows = torch.arange(5)
    parts = split_rows({"x": (rows, [rows * 2]), "scale": torch.tensor(3.0), "name": "n"}, 2)
    assert [part["x"][1][0].tolist() for part in parts] == [[0, 2], [4, 6], [8]]
    assert all(part["scale"] == 3 and part["name"] == "n" for part in parts)
    assert type(split_rows(Batch(x=rows), 3)[1]) is Batch
    assert split_rows(torch.empty(0, 2), 3) == []
    with pytest.raises(MicrobatchError, match="4 rows and another 5"):
        split_rows((rows, rows[:4]), 2)


@pytest.mark.parametrize(("size", "min_size"), [(1, 2), (0, 0)])
def test_sizes_that_mean_nothing_are_errors(size: int, min_size: int) -> None:
    for error, message in run_ranks(bodies.wrong_size, size, min_size):
        assert error == "MicrobatchError"
        assert f"got min_size={min_size} and size={size}" in message
