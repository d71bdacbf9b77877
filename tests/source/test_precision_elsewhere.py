"""Mixed precision in sources or files of arguments, beside a config of Accelerate's without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.source.argument_files import steps_for_arguments
from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAINS = "from transformers import Trainer, TrainingArguments\n\nargs = TrainingArguments(\n    'out', {})\n"
PREPARES = "from accelerate import Accelerator\n\n\naccelerator = Accelerator(\n    {})\n"
FIELD = "from trl import SFTConfig\n\n\nclass Own(SFTConfig):\n    {}\n"


def said_of(folder: Path) -> list[str]:
    return [step.text for step in steps_for_arguments([folder], find_configs([folder]), [])]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("train.py", TRAINS.format("bf16=True"), 4),
        ("train.py", TRAINS.format("fp16=use_fp16"), 4),
        ("train.py", TRAINS.replace("TrainingArguments", "GRPOConfig").format("bf16=True"), 4),
        ("train.py", PREPARES.format("mixed_precision='bf16'"), 5),
        ("train.py", PREPARES.format("mixed_precision=args.mixed_precision"), 5),
        ("train.py", FIELD.format("bf16: bool = True"), 5),
        ("train.py", FIELD.format("bf16: bool = field(default=True)"), 5),
        ("sft.yaml", "output_dir: out\nbf16: true\n", 2),
        ("sft.json", '{"output_dir": "out",\n "fp16": true}\n', 2),
        ("train.py", TRAINS.format("bf16=False"), None),
        ("train.py", TRAINS.format("learning_rate=1e-4"), None),
        ("train.py", TRAINS.format("bf16=True, fsdp='full_shard'"), None),  # a rule says it there
        ("train.py", PREPARES.format("mixed_precision='no'"), None),
        ("train.py", PREPARES.format("mixed_precision='bf16', fsdp_plugin=plugin"), None),  # and there
        ("train.py", "import torch\n\n\n\nargs = MyArguments(bf16=True)\n", None),
        ("train.py", FIELD.format("bf16: bool = False"), None),
        ("sft.yaml", "output_dir: out\nbf16: false\n", None),
        ("model.yaml", "bf16: true\nlayers: 2\n", None),
    ],
)
def test_it_is_to_be_seen(tmp_path: Path, name: str, text: str, line: int | None) -> None:
    (tmp_path / name).write_text(text)
    assert said_of(tmp_path) == []
    config = tmp_path / "fsdp.yaml"
    config.write_text(f"{FSDP}mixed_precision: 'no'\n")
    found = said_of(tmp_path)
    assert [f"({tmp_path / name}:{line})" in each for each in found] == [True] * (line is not None)
    config.write_text(FSDP)
    assert said_of(tmp_path) == found
    convert_config_file(config, in_place=True)
    assert said_of(tmp_path) == found
    for other in (
        f"{FSDP}mixed_precision: bf16\n",
        "distributed_type: MULTI_GPU\n",
        f"{FSDP}  fsdp_version: 2\n",
    ):
        (tmp_path / "fsdp.yaml.fsdp1").unlink(missing_ok=True)
        config.write_text(other)
        assert said_of(tmp_path) == []
