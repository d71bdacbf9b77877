"""``compare_runs``: nothing is found where nothing is wrong, and each fault is found where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.parity import parity_faults_bodies as parity_faults
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from fsdp_migrate.parity import ParityReport


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ParityReport]:
    """Run all comparisons in one run of ranks."""
    folder = str(tmp_path_factory.mktemp("parity") / "checkpoint")
    first, second = run_ranks(parity_faults.compare_all, folder)
    assert {name: each.differences for name, each in first.items()} == {
        name: each.differences for name, each in second.items()
    }, "all ranks are told the same"
    return first


@pytest.mark.parametrize(
    "case",
    ["nothing, from a checkpoint", *(name for name in parity_faults.CASES if name.startswith("nothing"))],
)
def test_what_trains_as_under_fsdp1_is_identical(case: str, reports: dict[str, ParityReport]) -> None:
    report = reports[case]
    assert (report.first, report.identical, report.is_explained) == (None, True, True)
    for step in report.steps:
        assert step.fsdp1_loss == step.fsdp2_loss
        assert step.compared["gradient"] > 0
        assert step.compared["output"] > 0
        assert (step.compared["recomputed"] > 0) is (case == "nothing, recomputed")
    if case == "nothing, from a checkpoint":
        assert step.compared["optimizer state"] == 3 * step.compared["parameter"]
    if case == "nothing, flat and bf16":
        assert step.compared["optimizer group"] == step.compared["gradient"] == 16


@pytest.mark.parametrize(
    ("case", "step", "stage", "name", "said"),
    [
        ("a tie", 0, "ties", "head.out.weight", "only under FSDP1 these are one parameter: embed.weight"),
        ("a unit", 0, "units", "blocks.0", "a unit only under FSDP1"),
        ("the reduction's dtype", 1, "gradient", "head.out.bias", "float32 under FSDP1, in bfloat16 under"),
        ("the divisor", 1, "gradient", "head.out.bias", "2 times FSDP1's, as there are 2 ranks: a divisor"),
        ("replicas", 1, "gradient", "head.out.bias", "3 all-reduce collectives in this step, FSDP2 none"),
        ("buffers", 1, "used in forward", "offset", "it is bfloat16 under FSDP1, float32 under FSDP2"),
        ("the optimizer", 1, "optimizer group", "head.out.bias", "in the optimizer only under FSDP1"),
        ("random numbers", 1, "recomputed", "drop", ""),
    ],
)
def test_a_fault_is_named_where_it_is(
    case: str, step: int, stage: str, name: str, said: str, reports: dict[str, ParityReport]
) -> None:
    first = reports[case].first
    assert first is not None
    assert (first.step, first.stage, first.name) == (step, stage, name)
    assert said in f"{first.clue} {first.gap.words}"
    assert first.explanation.startswith("not explained by any finding")
    assert (reports[case].identical, reports[case].is_explained) == (False, False)


def test_replicas_that_are_apart_are_named(reports: dict[str, ParityReport]) -> None:
    first = reports["replicas"].first
    assert first is not None
    assert "ranks 0 and 1 hold different whole gradients" in first.clue
    assert first.gap.fsdp1 != first.gap.fsdp2


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("explained", "FM012"),
        ("explained, by the default optimizer", "FM012"),
        ("gradients that nobody clears", "FM002"),
    ],
)
def test_what_a_finding_explains_is_said(case: str, code: str, reports: dict[str, ParityReport]) -> None:
    report = reports[case]
    assert report.first is not None
    assert (report.identical, report.is_explained, report.first.explained_by) == (False, True, code)


def test_costs_are_counted_by_kind_and_dtype(reports: dict[str, ParityReport]) -> None:
    step = reports["nothing, flat and bf16"].steps[-1]
    for cost in (step.fsdp1, step.fsdp2):
        found = {(each.kind, each.dtype): each.calls for each in cost.collectives}
        # Two blocks and the root, whose parameters stay between forward and backward.
        assert found == {("all-gather", "bfloat16"): 5, ("reduce-scatter", "float32"): 3}
        assert all(each.bytes > 0 and each.group_size == 2 for each in cost.collectives)
        assert 0 < cost.gradient_bytes <= cost.parameter_bytes
        assert cost.peak_bytes is None


def test_a_report_survives_json(reports: dict[str, ParityReport]) -> None:
    from fsdp_migrate.parity.report import read_report

    for report in reports.values():
        assert read_report(json.loads(json.dumps(report.as_dict(), allow_nan=False))) == report


def test_what_was_made_up_is_said(reports: dict[str, ParityReport]) -> None:
    said = " ".join(reports["nothing"].notes)
    assert "random tokens of 13" in said
    assert "AdamW with lr 0.001" in said
    assert "The loss is" in said
    assert "were generated" not in " ".join(reports["nothing, BatchNorm"].notes)
    # torch's AdamW fails under FSDP1 there; the batches are as large as was asked for.
    said = " ".join(reports["explained, by the default optimizer"].notes)
    assert "The optimizer is SGD with lr 0.001, because AdamW refuses" in said
    assert "3 rows of 5 random tokens" in said
