"""What fails on one rank is an error on all, and a retried batch is as if nothing had happened."""

from __future__ import annotations

import pytest
import torch

from fsdp_migrate.errors import MicrobatchError
from fsdp_migrate.microbatch.search import split_rows
from fsdp_migrate.microbatch.votes import describe_failure
from tests.rank_bodies import microbatch_failures as bodies
from tests.ranks import run_ranks


LEFT = "rank 1: its loop was left before the last microbatch, by an error of its own or a `break`"
STOPS = "Every rank stops in the middle of a batch, because of "
OWN = f'{STOPS}rank 1: KeyError: "a body\'s own error"'
CUT = "MicrobatchError: A tensor of the batch has 4 rows and another 3, so they cannot be cut alike."
DIVERGED = "The ranks do not run the same units. They were about to do different things: "

# What each rank raises: its class, and how its text begins.
EXPECTED: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "in with": (("BatchError", OWN), ("BatchError", OWN)),
    "before the loop": (("BatchError", OWN), ("BatchError", OWN)),
    "in for": (("BatchError", STOPS + LEFT), ("KeyError", '"a body\'s own error"')),
    "after the others": (("BatchError", STOPS + LEFT), ("KeyError", '"a body\'s own error"')),
    "by break": (("BatchError", STOPS + LEFT), ("no error", "")),
    "while joining": (("BatchOutOfMemoryError", f"{STOPS}rank 1: out of memory"),) * 2,
    "in loading": (("BatchError", f"{STOPS}rank 1: OSError: the file is gone"),) * 2,
    "nothing": (("MicrobatchError", "No rank has a microbatch"),) * 2,
    "settings": (
        ("MicrobatchError", "The ranks gave `microbatches` different settings: this one comms='every'"),
        ("MicrobatchError", "The ranks gave `microbatches` different settings: this one comms='last'"),
    ),
    "sizes": (
        ("MicrobatchError", "The ranks cannot begin with the same microbatch: here size=1"),
        ("MicrobatchError", "The ranks cannot begin with the same microbatch: here size=2"),
    ),
    "no rows": (
        ("MicrobatchError", "`batch` holds no tensor"),
        ("MicrobatchError", "The ranks cannot begin with the same microbatch: here size=None"),
    ),
    "unlike rows": (("BatchError", f"{STOPS}rank 1: {CUT}"),) * 2,
    "skipping": (
        (
            "RanksDivergedError",
            f"{DIVERGED}rank 0: all-gather of `blocks.0` in microbatch 0; rank 1: all-gather of `blocks.1`",
        ),
    )
    * 2,
    "without a gradient": (
        (
            "RanksDivergedError",
            (
                f"{DIVERGED}rank 0: reduction of `head` in microbatch 0; "
                "rank 1: reduction of `head` in microbatch 0, 2 of 4 parameters."
            ),
        ),
    )
    * 2,
    "fewer backwards": (
        (
            "RanksDivergedError",
            f"{DIVERGED}rank 0: all-gather of `head` in microbatch 1; rank 1: nothing more in microbatch 1.",
        ),
    )
    * 2,
}
EXPECTED |= {
    "in remembering": (("BatchOutOfMemoryError", f"{STOPS}rank 1: out of memory: OutOfMemoryError: no room"),)
    * 2,
    "swallowed": (("BatchError", STOPS + LEFT), ("KeyError", '"a body\'s own error"')),
    "in a generator": (("BatchError", f"{STOPS}rank 1: GeneratorExit"), ("no error", "")),
    "other models": (("MicrobatchError", "The ranks' models differ: this one has"),) * 2,
    "unexpected gradient": (
        ("BatchError", f"{STOPS}rank 1: RanksDivergedError: `head` has gradients of `head.norm.weight`"),
    )
    * 2,
}
# Without `agree` nothing is remembered, so nothing is put back.
KEEPS_GRADIENTS = {"after the others"}


def test_every_failure_is_expected() -> None:
    assert set(EXPECTED) == set(bodies.FAILURES)


@pytest.fixture(scope="module")
def failures() -> list[dict[str, bodies.Failure]]:
    return run_ranks(bodies.fail_everyhow, timeout=400)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_fails_on_one_rank_is_an_error_on_all_and_the_next_batch_is_right(
    name: str, failures: list[dict[str, bodies.Failure]]
) -> None:
    found = [of_rank[name] for of_rank in failures]
    for failure, (error, message) in zip(found, EXPECTED[name], strict=True):
        assert failure.error == error
        assert failure.message.startswith(message)
        assert failure.settings_back
        assert failure.gradients_back == (name not in KEEPS_GRADIENTS)
        assert failure.next_is_right


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


def test_the_least_size_that_does_not_fit_is_an_error() -> None:
    message = f"{STOPS}rank 1: out of memory: OutOfMemoryError: CUDA out of memory, says this test"
    assert run_ranks(bodies.nothing_fits) == [("BatchOutOfMemoryError", message)] * 2


def test_batch_norm_over_ranks_needs_equal_numbers() -> None:
    for error, message in run_ranks(bodies.sync_batch_norm):
        assert error == "MicrobatchError"
        assert message.startswith("`1` is a SyncBatchNorm, whose forward needs every rank")
        assert "ranks have 0 to 1 microbatches" in message


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_lack_of_memory_is_recognised(error: BaseException | None, is_memory: bool) -> None:
    assert describe_failure(error).startswith("out of memory: ") == is_memory


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
