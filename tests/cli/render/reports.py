"""Reports of every command, with a word longer than a line."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from fsdp_migrate.cli import main
from tests.checkpoint.samples import COMPOSER, PLAIN
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    Capture = pytest.CaptureFixture[str]


LONG = "a_model_of_somebody_s_own.with_layers.that_have.very_long_names.self_attention"


CODE = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP({LONG.replace(".", "_")}, device_id=0)
model.apply({LONG.replace(".", "_")})
model.apply({LONG.replace(".", "_")})
model.register_comm_hook(None, hook)  # of FSDP(model)
"""


def command_lines(tmp_path: Path) -> dict[str, list[str]]:
    """Return a command line of each command that reports."""
    shutil.copytree(PLAIN, tmp_path / "source")
    (tmp_path / "train.py").write_text(CODE)
    example = ROOT / "examples" / "configs" / "accelerate.yaml"
    (tmp_path / "accelerate.yaml").write_text(example.read_text())
    source = str(tmp_path / "source")
    (tmp_path / "fsdp.yaml").write_text("backward_prefetch: BACKWARD_POST\n")
    rename = ["--rename", f"^=net_{LONG}."]
    assert main(["convert", source, str(tmp_path / "renamed"), *rename, "--overwrite"]) == 0
    plan = ["plan", "--model", "tests.models:tied_net", "--world-size", "2"]
    return {
        "inspect": ["inspect", str(COMPOSER)],
        "convert": ["convert", source, "--dry-run", "--to", "lightning", *rename],
        "verify": ["verify", source, str(tmp_path / "renamed"), *rename],
        "different": ["verify", source, str(tmp_path / "renamed")],
        "plan": [*plan, "--config", str(tmp_path / "fsdp.yaml")],
        "config": ["config", str(tmp_path / "accelerate.yaml"), "--check"],
        "scan": ["scan", str(tmp_path)],
        "rewrite": ["rewrite", str(tmp_path / "train.py"), "--check"],
    }
