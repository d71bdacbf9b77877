"""What fails on one rank is an error on all ranks, with one message for each of them."""

from __future__ import annotations

import pytest
import torch

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
