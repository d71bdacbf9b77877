"""``load_checkpoint``: the next losses are FSDP1's, and what does not fit is refused before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rank_bodies import loading
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["sharded", "full", "ranks", "flat"])
def test_the_next_losses_are_those_of_fsdp1(kind: str, tmp_path: Path) -> None:
    wanted = run_ranks(loading.run_fsdp1, str(tmp_path / "old"), kind)
    found = run_ranks(loading.resume_fsdp2, str(tmp_path / "old"), kind)
    assert [rank["losses"] for rank in found] == wanted
    if kind != "flat":
        assert [rank["step"] for rank in found] == [2, 2]
    assert all(rank["report"]["missing"] == [] for rank in found)


@pytest.mark.slow
def test_the_next_losses_of_a_hybrid_run(tmp_path: Path) -> None:
    wanted = run_ranks(loading.run_fsdp1, str(tmp_path / "old"), "hsdp", world_size=4)
    found = run_ranks(loading.resume_fsdp2, str(tmp_path / "old"), "hsdp", world_size=4)
    assert [rank["losses"] for rank in found] == wanted


def test_a_run_goes_back_to_fsdp1_by_torchs_own_call(tmp_path: Path) -> None:
    wanted = run_ranks(loading.run_fsdp1, str(tmp_path / "old"), "sharded", 6)
    found = run_ranks(loading.go_there_and_back, str(tmp_path / "old"), str(tmp_path / "back"))
    assert found == wanted
