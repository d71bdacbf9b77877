"""How Trainers start: the callback on one rank only, no children to shard, unsettled sources."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest
import torch

from tests.adapters.composer_trainer import composer_starts_bodies as composer_starts
from tests.rank_bodies.composer_training import Run
from tests.ranks import ROOT, RanksFailedError, run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.composer


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_callback_on_one_rank_only_is_an_error_with_words_on_every_rank(rank: int, late: int) -> None:
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(composer_starts.start_on_one_rank, rank, late, timeout=120)
    words = f"Not every rank's Trainer has the FSDP2Migration callback: rank {1 - rank} has none"
    for each in (0, 1):
        assert words in caught.value.failures[each]


def test_trainers_without_it_are_what_they_were() -> None:
    for fsdp1, ddp, ours in run_ranks(composer_starts.start_plain_trainers, timeout=200):
        assert fsdp1 == pytest.approx(ddp, abs=1e-6)
        assert fsdp1 == ours


@pytest.mark.parametrize("rank", [0, 1])
def test_what_rewrite_left_to_a_person_stops_the_run_at_its_start(tmp_path: Path, rank: int) -> None:
    errors = run_ranks(composer_starts.start_with_unsettled_sources, str(tmp_path), rank)
    assert errors[rank].startswith("SourceError: `fsdp-migrate rewrite` left 1 use of FSDP1 to you")
    assert errors[1 - rank].startswith(f"ModelError: Rank {rank} cannot shard its model")
    assert all("left.py:1 FM307" in error for error in errors)


def test_a_model_without_children_is_trained_as_composer_trained_it() -> None:
    """FSDP1 shards children only, so Composer takes DistributedDataParallel."""
    runs = [
        Run(migrate=migrate, rows=4, trainer={"device_train_microbatch_size": 2}) for migrate in (False, True)
    ]
    for before, after in run_ranks(composer_starts.train_bare, runs, timeout=200):
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        assert after["losses"] == before["losses"]
        assert list(after["parameters"]) == ["module.weight"]
        assert torch.equal(after["parameters"]["module.weight"], before["parameters"]["module.weight"])
        assert ("FM119", "Bare") in after["findings"]
        assert "FM416" not in [code for code, _ in after["findings"]]


def test_llm_foundry_finds_the_callback_by_its_entry_point() -> None:
    """Its registry of callbacks looks into the group of that name, and calls what it finds."""
    from composer import Callback

    declared = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'(?m)^\[project.entry-points.(\w+)\]\n(\w+) = "([\w.:]+)"$', declared)
    assert found is not None
    group, name, value = found.groups()
    assert (group, name) == ("llmfoundry_callbacks", "fsdp2_migration")
    made = EntryPoint(name, value, group).load()(strict=True, verify_steps=4)
    assert isinstance(made, Callback)
    assert made.findings == ()
