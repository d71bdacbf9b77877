"""A model of the installed PEFT goes on under FSDP2 from what FSDP1 saved of it."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from tests.frameworks import peft_models_bodies as peft_models
from tests.ranks import ROOT, run_ranks
from tests.scripts import run_script


if TYPE_CHECKING:
    from pathlib import Path


def test_the_next_losses_of_a_model_of_peft(tmp_path: Path) -> None:
    wanted = run_ranks(peft_models.run_fsdp1, str(tmp_path))
    found = run_ranks(peft_models.resume_fsdp2, str(tmp_path))
    assert [rank["sharded"] for rank in found] == wanted
    assert [rank["full"] for rank in found] == wanted
    # PEFT's own file has the adapters alone: the losses are the same until the optimizer steps.
    assert [rank["adapter"] for rank in found] == [losses[:1] for losses in wanted]


def test_the_example_learns_and_what_it_saves_is_what_it_trained(tmp_path: Path) -> None:
    output = run_script(ROOT / "examples" / "peft_adapters.py", tmp_path / "adapter")
    first, _, last = (float(loss) for loss in re.findall(r"loss (\S+)", output))
    assert last < first
    (found,) = re.findall(r"trained (\S+), loaded without sharding (\S+)", output)
    assert float(found[0]) == pytest.approx(float(found[1]), abs=2e-6)


def test_every_kind_of_adapter_trains_as_under_fsdp1_and_goes_on(tmp_path: Path) -> None:
    for rank in run_ranks(peft_models.train_each, str(tmp_path)):
        assert list(rank) == list(peft_models.SETTINGS)
        for fsdp1, prepared, loaded in rank.values():
            assert prepared == fsdp1
            assert loaded == fsdp1[2:]


def test_adapters_of_a_prepared_model_are_saved_as_without_sharding(tmp_path: Path) -> None:
    found = run_ranks(peft_models.save_adapters, str(tmp_path))[0]
    assert list(found) == list(peft_models.SETTINGS)
    assert not any(found.values())
    assert len(list(tmp_path.rglob("plain/**/*.safetensors"))) == len(peft_models.SETTINGS) + 1


@pytest.mark.parametrize("copied", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_accelerates_fsdp2_stops_at_copies_of_a_tied_model(copied: list[str]) -> None:
    """FM343 of ``copied-modules`` says so, with the lines that untie the model before."""
    run = partial(peft_models.copy_head, copied=copied, is_untied=False)
    assert all("is shared with a parameter already managed" in said for said, _ in run_ranks(run, 2))
    untied = partial(peft_models.copy_head, copied=copied, is_untied=True)
    (said, losses), _ = run_ranks(run, 1)
    (helped, own), _ = run_ranks(untied, 2)
    assert said == helped == ""
    torch.testing.assert_close(own, losses)


def test_where_rank_0_loads_a_tied_model_with_copies_tying_it_again_raises() -> None:
    run = partial(peft_models.copy_head, copied=["lm_head"], is_untied=False, by_rank_0=True)
    assert all("attribute 'weight' already exists" in said for said, _ in run_ranks(run, 2))
