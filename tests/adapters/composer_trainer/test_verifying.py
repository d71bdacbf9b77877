"""``FSDP2Migration(verify_steps=N)``: nothing is found where nothing is wrong, and each fault where it is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.errors import ConfigError
from tests.adapters.composer_trainer.composer_verifying_bodies import verify_all
from tests.rank_bodies.composer_training import Run
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from fsdp_migrate.parity import ParityReport


pytestmark = pytest.mark.composer

TWO: dict[str, Any] = {"verify_steps": 2}
LOW = {"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "bf16"}}

SAME: dict[str, Run] = {
    "dropout, microbatches and a schedule": Run(
        model="net drop",
        optimizer="decoupled_adamw",
        warmup=True,
        rows=3,
        trainer={"device_train_microbatch_size": 1},
        callback=TWO,
    ),
    "functions that know their own modules": Run(
        model="fn", fsdp={"activation_checkpointing": True, **LOW}, optimizer="adamw", steps=2, callback=TWO
    ),
    "ties, children and flat parameters": Run(
        model="tied two left", fsdp={"use_orig_params": False}, steps=2, callback=TWO
    ),
    "clipping, averages and evaluations": Run(
        model="module metric", algorithms=("clip_norm", "ema"), steps=2, callback=TWO
    ),
    "groups, and layers that are ignored": Run(model="ignored", optimizer="subset", steps=2, callback=TWO),
    "partly frozen": Run(model="lora", steps=2, callback=TWO),
    "fewer batches, and a module that is replaced": Run(
        model="net drop", faults=("replaced",), callback={"verify_steps": 9}
    ),
}
FAULTS: dict[str, Run] = {
    "reduce dtype": Run(fsdp=LOW, faults=("reduce dtype",), callback=TWO),
    "divisor": Run(faults=("divisor",), callback=TWO),
    "left out": Run(faults=("left out",), callback=TWO),
    "buffers": Run(fsdp=LOW, faults=("buffers",), callback=TWO),
    "units": Run(faults=("units",), callback=TWO),
    "second batch": Run(faults=("second batch",), callback={"verify_steps": 3}),
}
ALONE: dict[str, Run] = {
    "a warning": replace(FAULTS["divisor"], callback={"verify_steps": 2, "on_difference": "warn"}, steps=2),
    "explained": Run(fsdp={"data_parallel_replicate_degree": 2}, steps=2, callback=TWO),
    "drift": Run(faults=("drift",), steps=1, callback=TWO),
}
NOT_DONE: dict[str, tuple[Run, str]] = {
    "no memory": (
        Run(faults=("no memory",), steps=1, callback=TWO),
        "no memory for a twin of the model on rank 1",
    ),
    "a batch twice": (
        Run(algorithms=("sam",), steps=1, callback=TWO),
        "the optimizer runs each batch several times",
    ),
    "a search": (Run(fails=("forward", 9), rows=4, callback=TWO), "the search for a microbatch size"),
    "compiled": (Run(faults=("compiled",), steps=1, callback=TWO), "the model is compiled"),
    "outputs": (
        Run(faults=("outputs",), callback=TWO),
        "the outputs are changed between the model's forward",
    ),
    "a batch with a graph": (
        Run(faults=("batch with a graph",), callback=TWO),
        "what its loss is given cannot be copied",
    ),
    "what FSDP1 refuses": (Run(fsdp={"cpu_offload": True}, callback=TWO), "CPU Offload not supported"),
    "no FSDP1 config": (Run(fsdp=None, callback=TWO), "there is nothing to migrate"),
}
SHARDED = {"state_dict_type": "sharded"}
SAVING = Run(optimizer="adamw", warmup=True, fsdp=SHARDED, migrate=False)
RESUMED = replace(SAVING, migrate=True, callback=TWO)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """Every case, by rank."""
    folder = tmp_path_factory.mktemp("saved")
    saving = replace(SAVING, trainer={"save_folder": str(folder), "save_interval": "2ba"})
    resumed = replace(RESUMED, trainer={"load_path": str(folder / "ep0-ba2"), "max_duration": "5ba"})
    not_done = {name: run for name, (run, _) in NOT_DONE.items()}
    cases = {**SAME, "resumed": resumed, **FAULTS, **ALONE, **not_done}
    alone = (*ALONE, "outputs", "a batch with a graph", "a search", "what FSDP1 refuses", "no FSDP1 config")
    return run_ranks(verify_all, cases, alone, saving, timeout=500)


def report_of(outcomes: list[dict[str, dict[str, Any]]], case: str) -> ParityReport:
    first, second = (found[case]["report"] for found in outcomes)
    assert first.differences == second.differences, "all ranks are told the same"
    found: ParityReport = first
    return found


@pytest.mark.parametrize("case", [*SAME, "resumed"])
def test_what_trains_as_under_fsdp1_is_identical(
    outcomes: list[dict[str, dict[str, Any]]], case: str
) -> None:
    for rank, found in enumerate(outcomes):
        assert found[case]["error"] == ""
        assert found[case]["codes"] == ["FM441"]
        assert len(found[case]["lines"]) == (rank == 0), "rank 0 says it, in one line"
    report = report_of(outcomes, case)
    assert (report.first, report.identical) == (None, True)
    assert len(report.steps) == (3 if case == "fewer batches, and a module that is replaced" else 2)
    for step in report.steps:
        assert step.fsdp1_loss == step.fsdp2_loss > 0
        for stage in ("used in forward", "output", "loss", "gradient", "optimizer group", "parameter"):
            assert step.compared[stage] > 0, stage
        assert step.compared["buffer"] > 0


@pytest.mark.parametrize("case", [*SAME, "resumed", "no memory", "a batch twice", "compiled"])
def test_the_run_is_the_same_to_the_last_bit_as_without(
    outcomes: list[dict[str, dict[str, Any]]], case: str
) -> None:
    """Losses, parameters, the optimizer's state, averages, metrics, random numbers, and hooks."""
    for found in outcomes:
        assert found[case]["error"] == ""
        assert found[case]["differs"] == []


def test_each_microbatch_is_compared(outcomes: list[dict[str, dict[str, Any]]]) -> None:
    report = report_of(outcomes, "dropout, microbatches and a schedule")
    for step in report.steps:
        assert step.compared["loss"] == 3
        assert step.compared["optimizer state"] == 3 * step.compared["parameter"]
    sent = [{(c.kind, c.dtype): c.calls for c in cost.collectives} for cost in (step.fsdp1, step.fsdp2)]
    assert sent[0] == sent[1]


def test_what_clipping_makes_of_gradients_is_said_not_to_be_compared(
    outcomes: list[dict[str, dict[str, Any]]],
) -> None:
    (line,) = outcomes[0]["clipping, averages and evaluations"]["lines"]
    assert "between backward and the step, as clipping, was taken from the run and not compared" in line
    assert "not compared" not in outcomes[0]["partly frozen"]["lines"][0]


def test_the_state_that_was_loaded_is_compared(outcomes: list[dict[str, dict[str, Any]]]) -> None:
    for step in report_of(outcomes, "resumed").steps:
        assert step.compared["optimizer state"] == 3 * step.compared["parameter"]


@pytest.mark.parametrize(
    ("case", "step", "stage", "name", "said"),
    [
        ("reduce dtype", 1, "gradient", "net.head.out.bias", "float32 under FSDP1, in bfloat16 under FSDP2"),
        ("divisor", 1, "gradient", "net.head.out.bias", "a divisor is off by the world size"),
        ("left out", 1, "optimizer group", "net.head.out.bias", "in the optimizer only under FSDP1"),
        ("buffers", 1, "used in forward", "net.offset", "it is bfloat16 under FSDP1, float32 under FSDP2"),
        ("units", 0, "units", "net.blocks.0", "a unit only under FSDP1"),
        ("second batch", 2, "gradient", "net.head.out.bias", "every number is 2 times FSDP1's"),
    ],
)
def test_a_fault_stops_the_run_where_it_is(
    outcomes: list[dict[str, dict[str, Any]]], case: str, step: int, stage: str, name: str, said: str
) -> None:
    first = report_of(outcomes, case).first
    assert first is not None
    assert (first.step, first.stage, first.name) == (step, stage, name)
    assert not first.is_explained
    for found in outcomes:
        assert found[case]["error"].startswith("ParityError: Different: ")
        assert said in found[case]["error"]
        assert "on_difference" in found[case]["error"]


def test_a_warning_lets_the_run_go_on(outcomes: list[dict[str, dict[str, Any]]]) -> None:
    assert outcomes[0]["a warning"]["codes"] == ["FM442"]
    (line,) = outcomes[0]["a warning"]["lines"]
    assert "a divisor is off by the world size" in line
    assert len(report_of(outcomes, "a warning").steps) == 1, "what follows is a consequence"


def test_what_a_finding_explains_is_no_error(outcomes: list[dict[str, dict[str, Any]]]) -> None:
    """FSDP1 does not average replicas of one rank each; these are averaged."""
    assert outcomes[0]["explained"]["error"] == ""
    assert outcomes[0]["explained"]["codes"] == ["FM442"]
    (line,) = outcomes[0]["explained"]["lines"]
    assert "FM107 explains it" in line


def test_kernels_that_do_not_repeat_their_bits_are_no_difference(
    outcomes: list[dict[str, dict[str, Any]]],
) -> None:
    (line,) = outcomes[0]["drift"]["lines"]
    assert "except 17 gradients that differ by rounding" in line
    assert "no more than those of FSDP1 do when it computes them again" in line
    assert outcomes[0]["drift"]["codes"] == ["FM441"]
    assert not report_of(outcomes, "drift").identical


@pytest.mark.parametrize("case", NOT_DONE)
def test_what_cannot_be_compared_is_said(outcomes: list[dict[str, dict[str, Any]]], case: str) -> None:
    line = outcomes[0][case]["lines"][0]
    assert "FM443" in line
    assert NOT_DONE[case][1] in line
    for found in outcomes:
        assert found[case]["report"] is None


def test_sums_over_more_ranks_are_compared_up_to_their_order() -> None:
    """FULL_SHARD over 3 ranks adds up in another order than FSDP1; a divisor that is off is found too."""
    cases = {"three": Run(callback=TWO, steps=2, rows=1), "divisor": replace(FAULTS["divisor"], rows=1)}
    found = run_ranks(verify_all, cases, ("three",), world_size=3)[0]
    assert found["three"]["error"] == ""
    assert found["three"]["codes"] == ["FM441"]
    assert "no more than the order of sums makes them" in found["three"]["lines"][0]
    report: ParityReport = found["three"]["report"]
    assert (report.identical, report.num_differences) == (False, 0)
    assert 0 < report.num_rounded < sum(step.compared["gradient"] for step in report.steps)
    assert report.steps[1].fsdp1_loss == report.steps[1].fsdp2_loss, (
        "the twin went on with the run's gradients"
    )
    assert "every number is 3 times FSDP1's" in found["divisor"]["error"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"verify_steps": -1}, "`verify_steps` is -1; expected a whole number from 0"),
        ({"verify_steps": True}, "`verify_steps` is a bool"),
        ({"verify_steps": 1, "on_difference": "stop"}, "`on_difference` is 'stop'; expected one of"),
    ],
)
def test_an_argument_that_means_nothing_is_an_error(given: dict[str, Any], said: str) -> None:
    from fsdp_migrate.adapters.composer_callback import FSDP2Migration

    with pytest.raises(ConfigError, match=re.escape(said)):
        FSDP2Migration(**given)
