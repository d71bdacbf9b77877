"""A copy of Hugging Face's Trainer in a project: `rewrite` turns it, and its launch lines stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.surroundings import said_of_settings


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

COPY = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def wrap(self, model):
        if self.args.fsdp:
            model = FSDP(model, sharding_strategy=self.fsdp)
        return model
"""
RUN = "torchrun train.py --output_dir o --fsdp 'full_shard auto_wrap' --learning_rate 1e-5\n"


@pytest.mark.parametrize(
    ("source", "is_copy"),
    [
        (COPY, True),
        (COPY.replace("self.args.fsdp", "self.on"), False),
        (COPY.replace("class Trainer", "class Loop"), False),
        (COPY.replace("FSDP(model, sharding_strategy=self.fsdp)", "model"), False),
    ],
)
def test_its_launch_lines_are_left_to_it(tmp_path: Path, source: str, *, is_copy: bool) -> None:
    trainer, script = tmp_path / "trainer.py", tmp_path / "run.sh"
    trainer.write_text(source)
    script.write_text(RUN)
    steps = next_steps([str(tmp_path)], scan_paths([tmp_path]), [], [], find_launches([tmp_path]))
    commands = [command for step in steps for command in step.commands]
    assert (f"fsdp-migrate config {script} --write" in commands) is not is_copy
    assert any(f"{trainer} is a copy of Hugging Face's" in step.text for step in steps) is is_copy
    sharding = [str(trainer)] if "FSDP(model" in source else []
    said = said_of_settings([tmp_path], is_changed=True, sharding=sharding)
    assert (str(script) in said) is not is_copy
