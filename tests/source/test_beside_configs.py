"""Scripts that give ``accelerate launch`` a precision, or an optimizer, beside a config of FSDP1's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.surroundings import find_configs
from fsdp_migrate.source.uses import ScanReport


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
LAUNCH = "accelerate launch {} --num_processes 4 \\\n  --config_file={} main.py\n"
FILE = '"${HERE}/configs/fsdp.yaml"'


@pytest.mark.parametrize(
    ("flag", "name", "config", "is_named"),
    [
        ("--mixed_precision=fp16", FILE, FSDP, True),
        ("--mixed_precision bf16", "configs/fsdp.yaml", FSDP, True),
        ('--mixed_precision "bf16"', "$HERE/configs/fsdp.yaml", f"{FSDP}mixed_precision: 'no'\n", True),
        ("--mixed_precision bf16", FILE, f"{FSDP}mixed_precision: bf16\n", False),
        ("--mixed_precision no", FILE, FSDP, False),
        ("--mixed_precision=fp16", FILE, FSDP.replace("FSDP", "DEEPSPEED"), False),
        ("--mixed_precision=fp16", FILE, f"{FSDP}  fsdp_version: 2\n", False),
        ("--mixed_precision=fp16", "absent.yaml", FSDP, False),
        ("", f"{FILE} main.py --mixed_precision fp16", FSDP, False),
        ("", FILE, FSDP, False),
        ("", f"{FILE} main.py --output_dir out --bf16 True", FSDP, True),
        ("", f"{FILE} main.py --fp16 --output_dir out", f"{FSDP}mixed_precision: 'no'\n", True),
        ("", f"{FILE} main.py --output_dir out --bf16", f"{FSDP}mixed_precision: bf16\n", False),
        ("", f"{FILE} main.py --output_dir out --bf16 False", FSDP, False),
        ("", f"{FILE} main.py --optim adamw_bnb_8bit", FSDP, True),
        ("", f"{FILE} main.py --optim=paged_adamw_32bit", f"{FSDP}mixed_precision: bf16\n", True),
        ("", f"{FILE} main.py --output_dir out --optim adafactor", FSDP, True),
        # Any script may have an argument of that name.
        ("", f"{FILE} main.py --optim adafactor", FSDP, False),
        ("", f"{FILE} main.py --optim adamw_torch", FSDP, False),
        ("", f"{FILE} main.py --optim adamw_bnb_8bit", FSDP.replace("FSDP", "DEEPSPEED"), False),
        ("", f"{FILE} main.py --optim adamw_bnb_8bit", f"{FSDP}  fsdp_version: 2\n", False),
    ],
)
def test_what_the_config_alone_does_not_say(
    tmp_path: Path, flag: str, name: str, config: str, *, is_named: bool
) -> None:
    """``config`` of the YAML says no FM354, or no FM343 of the optimizer, then; that of the script does."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(config)
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{LAUNCH.format(flag, name)}")
    launches = find_launches([tmp_path])
    assert [each.state for each in launches] == ["elsewhere"] * is_named
    steps = next_steps([str(tmp_path)], ScanReport((), 0), find_configs([tmp_path]), [], launches)
    commands = [command for step in steps for command in step.commands]
    assert (f"fsdp-migrate config {script}" in commands) is is_named
