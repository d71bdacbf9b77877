"""A comparison for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli.render.parity import show_parity
from fsdp_migrate.parity.report import Difference, verdict
from fsdp_migrate.parity.tensors import Gap
from tests.parity.reports import GRADIENT, report_of


if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]


@pytest.mark.any_torch
def test_the_first_difference_is_shown_with_all_that_is_known(capsys: Capture) -> None:
    other = Difference(
        step=1, stage="buffer", name="scale", module="", rank=0, gap=Gap(words="only under FSDP1")
    )
    report = report_of(GRADIENT, other)
    show_parity(report)
    shown = capsys.readouterr().out
    for expected in (
        "The runs part in step 1, at gradient head.[red]weight (rank 1):",
        "FSDP1:     1.0",
        "[0, 1], 2 of 4 numbers, 8,388,608 ulps at most",
        "clue:      every number is 2 times FSDP1's",
        "explained: not explained by any finding",
        "step 1, buffer scale: only under FSDP1",
        "5 x, 4.8 kB",
        "none",
        "The batches were generated.",
        "Different: 2 of 4 tensors of 1 step on 2 ranks (cpu)",
    ):
        assert expected in shown, shown
    assert (
        verdict(report_of()) == "Identical: 4 tensors of 1 step on 2 ranks (cpu) are the same, bit for bit."
    )
