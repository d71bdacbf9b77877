"""A strategy of Lightning's that several files of Hydra make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import NothingToConvertError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


STRATEGY = "_target_: lightning.pytorch.strategies.FSDPStrategy\nsharding_strategy: FULL_SHARD\n"
ADDED = "trainer:\n  strategy:\n    auto_wrap_policy: [m.Layer]\n    limit_all_gathers: true\n"
EXPERIMENT = "# @package _global_\ndefaults:\n  - override /trainer_strategy: fsdp\n" + ADDED


def _project(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _added(path: Path) -> list[str]:
    done = convert_config_file(path, world_size=4).conversion
    return [f.message for f in done.findings if f.code == "FM356" and " adds " in f.message]


@pytest.mark.parametrize(
    ("made", "adding"),
    [
        (
            {"c/trainer_strategy/fsdp.yaml": f"# @package trainer.strategy\n{STRATEGY}"},
            {"c/experiment/big.yaml": EXPERIMENT},
        ),
        (
            {"c/trainer_strategy/fsdp.yaml": f"# @package trainer.strategy\n{STRATEGY}"},
            {"c/experiment/big.yaml": f"# @package _global_\n{ADDED}"},
        ),
        (
            {"c/trainer/strategy/fsdp.yaml": STRATEGY},
            {"c/train.yaml": f"defaults: [{{trainer/strategy: fsdp}}]\n{ADDED}"},
        ),
        (
            {"trainer/fsdp.yaml": "strategy:\n  " + STRATEGY.replace("\ns", "\n  s")},
            {
                "trainer/big.yaml": "defaults: [fsdp]\n"
                + ADDED.replace("trainer:\n  ", "").replace("    ", "  ")
            },
        ),
    ],
)
def test_what_another_file_adds_to_a_strategy_is_told_in_both(
    made: dict[str, str], adding: dict[str, str], tmp_path: Path
) -> None:
    _project(tmp_path, made | adding)
    [group], [experiment] = ([tmp_path / name for name in files] for files in (made, adding))
    [message] = _added(group)
    assert message.startswith(f"{experiment} adds `auto_wrap_policy`, `")
    with pytest.raises(NothingToConvertError, match="Move them into that file") as told:
        convert_config_file(experiment)
    assert str(group) in str(told.value)
    assert told.value.names_fsdp
    convert_config_file(group, in_place=True, world_size=4)
    with pytest.raises(NothingToConvertError, match="Take them out, and give them to"):
        convert_config_file(experiment)


@pytest.mark.parametrize(
    "other",
    [
        EXPERIMENT.replace("fsdp\n", "ddp\n"),
        EXPERIMENT.replace("strategy:\n    ", "strategy:\n    _target_: a.B\n    "),
        "# @package _global_\nmodel:\n  strategy:\n    auto_wrap_policy: [a]\n",
        "# @package _global_\ntrainer:\n  strategy:\n    timeout: 3\n    accelerator: gpu\n",
        "- a\n",
        "a: [\n",
    ],
)
def test_what_is_no_part_of_the_strategy_is_not_said_to_be(other: str, tmp_path: Path) -> None:
    made = f"# @package trainer.strategy\n{STRATEGY}"
    _project(tmp_path, {"c/trainer_strategy/fsdp.yaml": made, "c/experiment/big.yaml": other})
    assert not _added(tmp_path / "c/trainer_strategy/fsdp.yaml")
