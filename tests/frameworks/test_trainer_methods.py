"""Which methods of Hugging Face's Trainer, and of its callbacks, see the sharded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from transformers import Trainer

from fsdp_migrate.source.python.trainer_models import (
    GIVEN_SHARDED,
    MAKES_OPTIMIZER,
    ON_INIT,
    RUN_SHARDED,
)
from tests.frameworks import trainer_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


# FSDP1 is stopped where it would save, and evaluates before that.
_SAVES = frozenset({"_finalize_training", "_save", "_save_optimizer_and_scheduler", "save_model"})
_ENDS = frozenset({"on_save", "on_train_end"})
_ELSEWHERE = frozenset({"prediction_loop"})


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_methods_of_a_trainer_see(version: int, tmp_path: Path) -> None:
    for seen in run_ranks(trainer_bodies.watch, version, str(tmp_path)):
        dimensions = 1 if version == 1 else 2
        sharded = f"{version}:{dimensions}"
        runs = {name for name in RUN_SHARDED - _ELSEWHERE if hasattr(Trainer, name)}
        runs -= _SAVES if version == 1 else set()
        assert {name: seen[f"{name} self"] for name in runs} == dict.fromkeys(runs, sharded)
        assert {name: seen[f"{name} model"] for name in GIVEN_SHARDED} == dict.fromkeys(
            GIVEN_SHARDED, sharded
        )
        before = {name: seen[f"{name} self"] for name in trainer_bodies.BEFORE}
        assert before == dict.fromkeys(trainer_bodies.BEFORE, "0:2")
        assert seen[ON_INIT] == "0:2"
        called = (
            set(trainer_bodies.CALLED) - {ON_INIT} - ({"on_save", "on_train_end"} if version == 1 else set())
        )
        assert {name: seen[name] for name in called} == dict.fromkeys(called, sharded)
        # FSDP1 left the parameters in place, as use_orig_params has it, and FSDP2 puts new ones there.
        for name in trainer_bodies.MAKES_BEFORE:
            assert seen[f"kept {name}"] == str(version == 1)
        # FSDP1 had made the parameters flat before the optimizer, and FSDP2 has not sharded them yet.
        assert seen[f"{MAKES_OPTIMIZER} self"] == ("0:1" if version == 1 else "0:2")


def test_fsdp2s_states_are_dtensors_in_a_trainer_and_save_is_given_the_whole(tmp_path: Path) -> None:
    for seen in run_ranks(trainer_bodies.watch, 2, str(tmp_path)):
        assert seen["state"] == "DTensor"
        assert seen["saved"] == "given"
