"""Files that prepare models by an Accelerator or a Fabric which another file makes, for FSDP1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAKES = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\n"
    "def make():\n    return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
)
PREPARES = (
    "from make import make\n\naccelerator = make()\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\n"
    "head = model.module.head\n"
)


def codes(folder: Path, makes: str, prepares: str) -> set[str]:
    (folder / "make.py").write_text(makes)
    (folder / "train.py").write_text(prepares)
    return {use.code for use in scan_paths([folder]).uses if use.path.endswith("train.py")}


def test_the_plugin_of_another_file_shards_what_is_prepared(tmp_path: Path) -> None:
    assert codes(tmp_path, MAKES, PREPARES) == {"FM333"}
    own = PREPARES.replace("from make import make\n", "from accelerate import Accelerator\n")
    assert codes(tmp_path, MAKES, own.replace("make()", "Accelerator()")) == set()
    assert codes(tmp_path, MAKES.replace("Plugin())", "Plugin(fsdp_version=2))"), PREPARES) == set()


def test_the_fabric_of_another_file_shards_what_it_sets_up(tmp_path: Path) -> None:
    makes = (
        "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n\n"
        "def make():\n    return Fabric(devices=2, strategy=FSDPStrategy())\n"
    )
    sets_up = "def run(fabric, net):\n    model = fabric.setup(net)\n    return model.state_dict()\n"
    assert codes(tmp_path, makes, sets_up) == {"FM333"}
    assert codes(tmp_path, makes.replace("FSDPStrategy", "DDPStrategy"), sets_up) == set()
