"""The example and the benchmark of microbatches run."""

from __future__ import annotations

import re

import pytest

from tests.scripts import run_script


@pytest.mark.slow
def test_the_example_accumulates_over_different_numbers_of_microbatches() -> None:
    """What is communicated when changes nothing but the traffic; the loss falls, on both ranks alike."""
    losses = []
    for arguments in ((), ("--comms", "last", "--agree")):
        output = run_script("examples/gradient_accumulation.py", *arguments)
        rows = re.findall(r"step (\d) rank (\d): (\d+) microbatches, loss (\d\.\d+)", output)
        assert len(rows) == 6
        counts = {rank: [int(count) for _, who, count, _ in sorted(rows) if who == rank] for rank in "01"}
        assert counts["0"] != counts["1"]
        by_rank = {rank: [loss for _, who, _, loss in sorted(rows) if who == rank] for rank in "01"}
        assert by_rank["0"] == by_rank["1"]
        losses.append([float(loss) for loss in by_rank["0"]])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
def test_the_benchmark_prints_ratios() -> None:
    output = run_script(
        "benchmarks/bench_microbatch.py", "--rounds", "1", "--steps", "1", "--width", "8", "--layers", "2"
    )
    assert len(re.findall(r"^\S.*: +\d+\.\d\d", output, re.MULTILINE)) == 4
