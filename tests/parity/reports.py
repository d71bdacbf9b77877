"""Reports of comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.findings import make_finding
from fsdp_migrate.parity.report import Collective, Cost, Difference, ParityReport, Step
from fsdp_migrate.parity.tensors import Gap


if TYPE_CHECKING:
    import pytest

    Capture = pytest.CaptureFixture[str]


COST = Cost(
    seconds=0.5,
    collectives=(Collective(kind="all-gather", dtype="float32", group_size=2, calls=5, bytes=4760),),
    parameter_bytes=100,
    gradient_bytes=100,
    optimizer_bytes=200,
    buffer_bytes=0,
)


def report_of(*differences: Difference) -> ParityReport:
    step = Step(
        number=1,
        fsdp1_loss=0.25,
        fsdp2_loss=0.5,
        compared={"loss": 1, "gradient": 3},
        different={each.stage: 1 for each in differences},
        fsdp1=COST,
        fsdp2=Cost(**{**vars(COST), "collectives": ()}),
    )
    return ParityReport(
        world_size=2,
        device="cpu",
        torch_version="2.13.0",
        steps=(step,),
        differences=differences,
        num_differences=len(differences),
        findings=(make_finding("FM012", "mixed_precision", "Kept."),),
        notes=("The batches were generated.",),
    )


GRADIENT = Difference(
    step=1,
    stage="gradient",
    name="head.[red]weight",
    module="head",
    rank=1,
    gap=Gap(count=2, numel=4, index=(0, 1), fsdp1=1.0, fsdp2=2.0, largest=1.0, ulps=8388608),
    clue="every number is 2 times FSDP1's",
)
