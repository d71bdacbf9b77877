"""Which layout a folder has, and what is asked where it has several."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import inspect_checkpoint
from fsdp_migrate.errors import CheckpointFormatError
from tests.checkpoint.framework_folders import cookbook
from tests.checkpoint.writers import put


if TYPE_CHECKING:
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


@pytest.mark.parametrize("step", ["step_{}_rank_0.pt", "checkpoint_{}.th"], ids=["ranks", "appended"])
def test_which_of_several_steps_is_asked(step: str, rank_sources: RankSources, tmp_path: Path) -> None:
    names = [step.format(number) for number in (1, 2)]
    for name in names:
        put(rank_sources, tmp_path, name.replace("rank_0", "rank_{}") if "rank" in name else f"{name}.{{}}")
    with pytest.raises(CheckpointFormatError, match="more than one checkpoint") as caught:
        inspect_checkpoint(tmp_path)
    assert all(name.partition("_rank")[0] in str(caught.value) for name in names)
    assert inspect_checkpoint(tmp_path / names[1]).layout == "ranks"


def test_which_of_several_models_is_asked(rank_sources: RankSources, tmp_path: Path) -> None:
    for name in ("actor", "critic"):
        put(rank_sources, tmp_path / name, "model_world_size_2_rank_{}.pt")
    with pytest.raises(CheckpointFormatError, match=r"`actor/`, `critic/`"):
        inspect_checkpoint(tmp_path)
    assert inspect_checkpoint(tmp_path / "actor").layout == "ranks"


def test_which_of_several_epochs_of_llama_cookbook_is_asked(
    rank_sources: RankSources, tmp_path: Path
) -> None:
    cookbook(rank_sources, tmp_path)
    for name in ("llama--7B-0.pt", "optimizer-llama--7B-0.pt"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("-0.pt", "-1.pt"))
    with pytest.raises(CheckpointFormatError, match=r"holds 2 checkpoints.*7B-0.*7B-1"):
        inspect_checkpoint(tmp_path)
    assert len(inspect_checkpoint(tmp_path / "llama--7B-1.pt").parts) == 1
