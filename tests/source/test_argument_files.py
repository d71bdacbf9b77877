"""Files of the Trainer's arguments that say nothing of FSDP, beside a config that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.source.argument_files import steps_for_arguments
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
ARGUMENTS = "model_name_or_path: a/b\noutput_dir: out\n{}\n"
JSON = '{{"output_dir": "out",\n  {}}}\n'


def said_of(folder: Path) -> list[str]:
    launches = find_launches([folder])
    return [step.text for step in steps_for_arguments([folder], find_configs([folder], launches), launches)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sft.yaml", ARGUMENTS.format("optim: paged_adamw_32bit"), "`adamw_torch` trains"),
        ("sft.yaml", ARGUMENTS.format('optim: "adamw_bnb_8bit"'), "`adamw_torch_8bit` (of torchao)"),
        ("sft.yml", ARGUMENTS.format("optim: adafactor"), "norms of rows and columns"),
        ("sft.json", JSON.format('"optim": "adafactor"'), "norms of rows and columns"),
        ("sft.yaml", f"training:\n  output_dir: out\n  optim: lion_8bit\n{'# a' * 40}\n", "the kernels"),
        ("sft.yaml", ARGUMENTS.format("label_smoothing_factor: 0.1"), "shift_labels=True"),
        ("sft.yaml", ARGUMENTS.format("label_smoothing_factor: 0.0"), ""),
        ("sft.yaml", ARGUMENTS.format("label_smoothing_factor: auto"), ""),
        ("sft.yaml", ARGUMENTS.format("optim: adamw_torch_fused"), ""),
        ("sft.yaml", ARGUMENTS.format("# optim: paged_adamw_32bit"), ""),
        ("model.yaml", "optim: adafactor\nlayers: 4\n", ""),
        ("recipe.yaml", "model: x\noptim: paged_adamw_8bit\n", "the kernels"),
        ("run.ini", "[TRAIN]\noptim=adamw_bnb_8bit\n", "the kernels"),
        ("run.toml", '[train]\noutput_dir = "out"\noptim = "adafactor"\n', "norms of rows and columns"),
        ("run.cfg", "[run]\noptim = adafactor\n", ""),
    ],
)
def test_what_fsdp2_trains_otherwise_with_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert said_of(tmp_path) == []
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    found = said_of(tmp_path)
    assert [said in each for each in found] == [True] * bool(said)
    line = next((at for at, each in enumerate(text.splitlines(), 1) if "optim" in each or "label" in each), 0)
    assert all(f"({tmp_path / name}:{line})" in each for each in found)
    for each in ("distributed_type: MULTI_GPU\n", f"{FSDP}  fsdp_version: 2\n"):
        (tmp_path / "fsdp.yaml").write_text(each)
        assert said_of(tmp_path) == []


def test_it_is_said_as_long_as_it_stands_there(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(ARGUMENTS.format("optim: adamw_8bit"))
    (tmp_path / "run.sh").write_text("accelerate launch --use_fsdp train.py a.yaml\n")
    (found,) = said_of(tmp_path)
    assert f"{tmp_path / 'a.yaml'}:3, {tmp_path / 'b.yaml'}:3" in found
    (tmp_path / "run.sh").unlink()
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    convert_config_file(tmp_path / "fsdp.yaml", in_place=True)
    assert said_of(tmp_path) == [found]


def test_a_file_that_asks_for_fsdp_itself_is_left_to_config(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(ARGUMENTS.format("optim: adamw_8bit\nfsdp: full_shard"))
    assert find_configs([tmp_path])
    assert said_of(tmp_path) == []
