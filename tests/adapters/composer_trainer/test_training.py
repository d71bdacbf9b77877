"""An unchanged Trainer call with the callback trains as it did under FSDP1, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ruamel.yaml import YAML

from fsdp_migrate.config_files import convert_config_file
from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.composer

Outcomes = dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]

CASES: dict[str, Run] = {
    "sgd": Run(),
    "adamw": Run(optimizer="adamw", warmup=True),
    "decoupled_adamw": Run(optimizer="decoupled_adamw", fsdp={"sharding_strategy": "SHARD_GRAD_OP"}),
    "microbatches": Run(rows=3, trainer={"device_train_microbatch_size": 1}, optimizer="decoupled_sgd"),
    "bf16": Run(
        fsdp={"mixed_precision": dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "bf16")}
    ),
    "bf16_reduced_in_fp32": Run(
        fsdp={"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}, "backward_prefetch": "NONE"}
    ),
    "checkpointing": Run(model="fn", fsdp={"activation_checkpointing": True}),
    "checkpointing_offload": Run(
        model="fn",
        fsdp={
            "activation_checkpointing": True,
            "activation_checkpointing_reentrant": False,
            "activation_cpu_offload": True,
        },
    ),
    "two_children": Run(model="two"),
    "no_shard": Run(fsdp={"sharding_strategy": "NO_SHARD"}),
    "some_in_groups": Run(optimizer="subset"),
    "thrashing": Run(rows=4, steps=9, thrashes=4),
    "flat": Run(fsdp={"use_orig_params": False}, optimizer="adamw"),
    "tied": Run(model="tied", optimizer="adamw"),
    "ema": Run(model="module", algorithms=("ema",)),
    "eval": Run(model="metric"),
    "ema_and_eval": Run(model="module metric", algorithms=("ema",)),
    "ignored": Run(model="ignored"),
    "left": Run(model="left"),
    "dict": Run(model="dict"),
    "set2": Run(fsdp={"process_group": "set2"}),
    "self": Run(fsdp={"process_group": "self"}),
    "forward_prefetch": Run(fsdp={"forward_prefetch": True}),
}


NEARLY = {"clip_norm": Run(algorithms=("clip_norm",)), "clip_value": Run(algorithms=("clip_value",))}
OFFLOADED = Run(fsdp={"cpu_offload": True})
FLAT_IN_GROUPS = Run(fsdp={"use_orig_params": False}, optimizer="subset")
LARGE = Run(rows=4, steps=5)
SEARCHES = {
    "in forward": replace(LARGE, fails=("forward", 2)),
    "in backward": replace(LARGE, fails=("backward", 2)),
    "twice": replace(LARGE, fails=("backward", 1)),
    "fits": replace(LARGE, fails=("forward", 9)),
}
FIXED = {size: replace(LARGE, trainer={"device_train_microbatch_size": size}) for size in (1, 2, 4)}


RUN = """\
# A fine-tuning run, as llm-foundry has it.
max_duration: 3ba
device_train_microbatch_size: 2
precision: fp32
fsdp_config: &fsdp
  sharding_strategy: SHARD_GRAD_OP  # as before
  mixed_precision: FULL
  activation_checkpointing: true
  backward_prefetch: BACKWARD_PRE
  state_dict_type: sharded
  limit_all_gathers: true
"""
OF_YAML = Run(model="fn", fsdp=YAML(typ="safe").load(RUN)["fsdp_config"])


def by_the_command(folder: Path) -> Run:
    """Return the run of Composer's own FSDP2 by what the command makes of the YAML."""
    path = folder / "run.yaml"
    path.write_text(RUN)
    convert_config_file(path, folder / "fsdp2.yaml")
    made = YAML(typ="safe").load(folder / "fsdp2.yaml")["fsdp_config"]
    return replace(OF_YAML, fsdp=made, migrate=False, own_fsdp2=True, by_environment=True)


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Every case, by rank: under FSDP1, and with the callback."""
    cases = {**CASES, **NEARLY}
    runs = [replace(run, migrate=migrate) for run in cases.values() for migrate in (False, True)]
    by_command = by_the_command(tmp_path_factory.mktemp("yaml"))
    alone = [OFFLOADED, FLAT_IN_GROUPS, *SEARCHES.values(), *FIXED.values(), OF_YAML, by_command]
    ranks = run_ranks(train_all, [*runs, *alone], timeout=500)
    pairs = [list(zip(found[: len(runs) : 2], found[1 : len(runs) : 2], strict=True)) for found in ranks]
    outcomes = {name: [rank[number] for rank in pairs] for number, name in enumerate(cases)}
    names = [
        "offloaded",
        "flat_in_groups",
        *SEARCHES,
        *(str(size) for size in FIXED),
        "yaml",
        "by the command",
    ]
    for number, name in enumerate(names):
        outcomes[name] = [(found[len(runs) + number],) * 2 for found in ranks]
    return outcomes


def same(after: dict[str, Any], before: dict[str, Any]) -> None:
    assert "error" not in before, before["error"]
    assert "error" not in after, after["error"]
    assert list(after["parameters"]) == list(before["parameters"])
    for name, expected in before["parameters"].items():
        assert torch.equal(after["parameters"][name], expected), name


def test_the_cpu_offload_that_composer_refuses_changes_no_value(outcomes: Outcomes) -> None:
    for (offloaded, _), (plain, _) in zip(outcomes["offloaded"], outcomes["sgd"], strict=True):
        same(offloaded, plain)
        assert offloaded["losses"] == plain["losses"]
        assert ("FM412", "cpu_offload") in offloaded["findings"]


def test_the_groups_that_flat_parameters_had_none_of_train(outcomes: Outcomes) -> None:
    """Composer refuses several groups with ``use_orig_params=False``."""
    for (flat, _), (_, plain) in zip(outcomes["flat_in_groups"], outcomes["some_in_groups"], strict=True):
        same(flat, plain)
        assert flat["losses"] == plain["losses"]


@pytest.mark.parametrize(("case", "size"), [("in forward", 2), ("in backward", 2), ("twice", 1), ("fits", 4)])
def test_a_rank_without_memory_makes_all_ranks_take_smaller_microbatches(
    outcomes: Outcomes, case: str, size: int
) -> None:
    """What comes out is what that size gives from the start; after three batches Composer stops looking."""
    for (found, _), (fixed, _) in zip(outcomes[case], outcomes[str(size)], strict=True):
        same(found, fixed)
        assert found["sizes"] == [size] * 5
        assert found["hooked"] == 0


def test_what_the_config_command_writes_trains_in_composers_fsdp2(outcomes: Outcomes) -> None:
    """Composer takes all of it, warns of nothing, and the losses are those of the callback."""
    for (by_callback, _), (by_command, _) in zip(outcomes["yaml"], outcomes["by the command"], strict=True):
        same(by_command, by_callback)
        assert len(by_command["losses"]) == 3
        assert by_command["losses"] == by_callback["losses"]
        assert by_command["findings"] == []


def test_composers_way_with_thrashing_is_what_it_was(outcomes: Outcomes) -> None:
    """Once the search has ended it begins anew, and ends anew."""
    for before, after in outcomes["thrashing"]:
        assert after["sizes"] == before["sizes"] == [4] * 4 + [2] * 5
        assert after["hooked"] == before["hooked"] == 0


@pytest.mark.parametrize("case", NEARLY)
def test_gradients_are_clipped_as_under_fsdp1(outcomes: Outcomes, case: str) -> None:
    for (before, after), (plain, _) in zip(outcomes[case], outcomes["sgd"], strict=True):
        assert "error" not in after, after["error"]
        assert after["losses"] == pytest.approx(before["losses"], abs=1e-6)
        assert after["losses"] != pytest.approx(plain["losses"], abs=1e-3)


def test_averages_and_evaluations_are_those_of_fsdp1(outcomes: Outcomes) -> None:
    for before, after in (*outcomes["ema"], *outcomes["ema_and_eval"]):
        assert len(before["ema"]) == len(before["parameters"])
        for name, expected in before["ema"].items():
            assert torch.equal(after["ema"][name], expected), name
    for before, after in (*outcomes["eval"], *outcomes["ema_and_eval"]):
        assert after["metrics"]["accuracy"] == before["metrics"]["accuracy"]
        assert torch.equal(after["metrics"]["predicted"], before["metrics"]["predicted"])


@pytest.mark.parametrize("case", sorted(CASES))
def test_losses_and_parameters_are_those_of_fsdp1(outcomes: Outcomes, case: str) -> None:
    for before, after in outcomes[case]:
        same(after, before)
        assert len(before["losses"]) >= 3
        assert after["losses"] == before["losses"]
