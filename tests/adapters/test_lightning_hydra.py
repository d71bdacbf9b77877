"""A file of a Hydra group, of which another file tells that it is Hydra's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.project_imports import is_hydra_group
from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

GROUP = "max_epochs: 1\naccelerator: gpu\nprecision: bf16-mixed\nstrategy: fsdp\n"


@pytest.mark.parametrize(
    ("above", "folder"),
    [
        ("defaults: [trainer: default, _self_]\n", "trainer"),
        ("defaults:\n  - _self_\n  - override /trainer: default.yaml\n", "trainer"),
        ("defaults:\n  - conf/trainer@run.trainer: small\nlr: 1\n", "conf/trainer"),
    ],
)
def test_a_strategy_in_a_group_of_hydra_is_a_target(above: str, folder: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "fsdp.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(GROUP)
    assert not is_hydra_group(path)
    (tmp_path / "train.yaml").write_text(above)
    done = convert_config_file(path, world_size=4).conversion
    assert "_target_: lightning.pytorch.strategies.ModelParallelStrategy" in done.text
    assert "class_path" not in done.text
    [said] = [f for f in done.findings if "hydra.utils.instantiate" in (f.hint or "")]
    assert (said.code, said.subject) == ("FM355", "strategy")


@pytest.mark.parametrize(
    "above", ["trainer: default\n", "defaults:\n  - model: trainer\n", "defaults: [a/trainer: b]\n"]
)
def test_a_file_that_nothing_above_chooses_is_lightning_clis(above: str, tmp_path: Path) -> None:
    path = tmp_path / "trainer" / "fsdp.yaml"
    path.parent.mkdir()
    path.write_text(GROUP)
    (tmp_path / "train.yaml").write_text(above)
    assert "class_path: lightning" in convert_config_file(path, world_size=4).conversion.text


def test_what_a_group_takes_from_another_file_has_its_target_there(tmp_path: Path) -> None:
    path = tmp_path / "trainer" / "fsdp.yaml"
    path.parent.mkdir()
    path.write_text("defaults:\n  - default\n" + GROUP)
    (tmp_path / "train.yaml").write_text("defaults:\n  - trainer: fsdp\n")
    done = convert_config_file(path, world_size=4).conversion
    assert not [f for f in done.findings if "instantiate" in (f.hint or "")]
