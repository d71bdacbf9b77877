"""What the callback says, when it does nothing, and what it refuses: on every rank, without a hang."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rank_bodies.composer_training import Run, said
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer

REFUSED: dict[str, tuple[Run, dict[str, Any], str]] = {
    "an unknown field": (Run(fsdp={"sharding_stratgy": "FULL_SHARD"}), {}, "ConfigError: `sharding_stratgy`"),
    "a contradiction": (
        Run(fsdp={"activation_cpu_offload": True, "use_orig_params": False}),
        {},
        "use_orig_params=False",
    ),
    "degrees that do not divide": (Run(fsdp={"data_parallel_shard_degree": 3}), {}, "World size 2"),
    "own degrees that do not divide": (
        Run(fsdp=None, callback={"fsdp_config": {"data_parallel_shard_degree": 3}}),
        {},
        "ConfigError: `data_parallel_replicate_degree` None and `data_parallel_shard_degree` 3",
    ),
    "two configs": (Run(callback={"fsdp_config": {}}), {}, "ConfigError: There are two FSDP1 configs"),
    "the callback twice": (Run(model="net", twice=True), {}, "ConfigError: The Trainer has 2 FSDP2Migration"),
    "a later Composer": (Run(), {"version": "0.34.0"}, "UnsupportedFeatureError: Composer 0.34.0 was not"),
    "an earlier Composer": (Run(), {"version": "0.31.0"}, "Install `mosaicml>=0.32,<0.34`"),
    "a hook that moved": (
        Run(),
        {"hook": "_apply_fsdp2"},
        "expects: `composer.core.state.State._apply_fsdp2` is not there",
    ),
    "a hook that takes something else": (Run(), {"hook": "_apply_fsdp"}, "does not take state"),
    "strict": (Run(callback={"strict": True}), {}, "FindingsError: 1 thing would change"),
    "a tie across children": (
        Run(model="tied_across"),
        {},
        "`other.weight` are one parameter in two children of the ComposerModel, `net` and `other`",
    ),
    "a tie on one rank only": (Run(), {"rank": 1, "run": {"model": "tied_across"}}, "ModelError: "),
    "an unknown field on one rank": (
        Run(),
        {"rank": 1, "run": {"fsdp": {"sharding_stratgy": "FULL_SHARD"}}},
        "`sharding_stratgy` is no field of Composer's FSDPConfig",
    ),
    "another field on one rank": (
        Run(),
        {"rank": 1, "run": {"fsdp": {"activation_checkpointing": True}}},
        "ConfigError: The ranks have other configs: `activation_checkpointing` is None on rank 0 and True on",
    ),
    "another strategy on rank 0": (
        Run(fsdp={"sharding_strategy": "FULL_SHARD"}),
        {"rank": 0, "run": {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}},
        "`sharding_strategy` is 'SHARD_GRAD_OP' on rank 0 and 'FULL_SHARD' on rank 1",
    ),
    "a config of its own on one rank": (
        Run(fsdp=None, callback={"fsdp_config": {}}),
        {"rank": 1, "run": {"callback": {}}},
        "ConfigError: Rank 1 has no FSDP1 config",
    ),
    "another model on one rank": (Run(), {"rank": 1, "run": {"model": "wide"}}, "differ"),
    "other dtypes on one rank": (
        Run(),
        {"rank": 1, "run": {"fsdp": {"mixed_precision": {"param_dtype": "bf16"}}}},
        "`mixed_precision` is None on rank 0 and {'param_dtype': 'bf16'} on rank 1",
    ),
    "the callback twice on one rank": (
        Run(),
        {"rank": 0, "run": {"twice": True}},
        "The Trainer has 2 FSDP2Migration callbacks",
    ),
    "rank 0 without values": (
        Run(model="net upside", fsdp={"sync_module_states": True}),
        {},
        "The models of ranks [0] are on the meta device and those of ranks [1] are not",
    ),
    "a strange optimizer": (
        Run(optimizer="strange"),
        {},
        "OptimizerError: Optimizer 0 (SGD) has 1 parameter in group",
    ),
    "a word for groups that does not divide": (
        Run(fsdp={"process_group": "set3"}),
        {},
        "ConfigError: `process_group` is 'set3', but 2 ranks are no multiple of 3",
    ),
}


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    return run_ranks(said, [(run, sabotage) for run, sabotage, _ in REFUSED.values()], timeout=300)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_an_error_on_every_rank(outcomes: list[dict[str, Any]], case: str) -> None:
    number = list(REFUSED).index(case)
    for found in outcomes:
        assert REFUSED[case][2] in found["refusals"][number], found["refusals"][number]


def test_the_findings_are_logged_and_the_state_is_that_of_fsdp2(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        found = outcome["described"]
        assert found["version"] == 2
        assert found["kinds"] == ("sharded", "ba{batch}", True)
        assert found["units"] == ["blocks.0", "blocks.1", ""]
        assert found["classes"] == ["FSDPNet", "FSDPSequential"]
        assert found["hyperparameters"]["findings"]["changed"] == 1
        assert found["table"][0] == ["code", "fidelity", "subject", "message", "hint"]
        assert "FM413" in [row[0] for row in found["table"]]
        assert found["scaler"] == "ClosureGradScaler"


def test_nothing_is_done_where_there_is_nothing_to_migrate(outcomes: list[dict[str, Any]]) -> None:
    assert [found["without effect"] for found in outcomes] == [[True, True]] * 2
