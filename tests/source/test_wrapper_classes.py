"""The project's own subclasses of DistributedDataParallel are other wrappers, by any name and over files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HOME = "import torch\n\n\nclass {}({}):\n    pass\n\n\ndef wrap(net):\n    return {}(net)\n"
DDP = "torch.nn.parallel.DistributedDataParallel"
STEP = (
    "{}{}\n\ndef shard(net, kind):\n    if kind == 'fsdp':\n        return FSDP(net)\n    return {}\n\n\n"
    "def step(model, data):\n    if isinstance(model, {}):\n        return model.module(data)\n"
    "    return model(data)\n\n\n"
    "def main(net, kind, data):\n    step(shard(net, kind), data)\n"
)


@pytest.mark.parametrize(
    ("imports", "asked"),
    [
        ("import dist\n", "dist.{}"),
        ("from dist import {}\n", "{}"),
        ("import dist\n", "(dist.{}, torch.nn.DataParallel)"),
    ],
)
@pytest.mark.parametrize("name", ["DistributedDataParallel", "Synced"])
def test_what_it_holds_is_taken(tmp_path: Path, imports: str, asked: str, name: str) -> None:
    imports = f"import torch\n{imports.format(name)}import dist as made\n"
    step = STEP.format(imports, FSDP, "made.wrap(net)", asked.format(name))
    found = after(tmp_path, {"dist.py": HOME.format(name, DDP, name), "train.py": step}, "train.py")
    assert "return model.module(data)\n" in found
    assert "fsdp-migrate:" not in found


def test_a_class_of_the_same_file(tmp_path: Path) -> None:
    own = f"import torch\n\n\nclass Synced({DDP}):\n    pass\n\n\n"
    step = STEP.format("", f"{FSDP}\n{own}", "Synced(net)", "Synced")
    found = after(tmp_path, {"train.py": step}, "train.py")
    assert "return model.module(data)\n" in found
    assert "fsdp-migrate:" not in found


@pytest.mark.parametrize("above", ["torch.nn.Module", "torch.distributed.fsdp.FullyShardedDataParallel"])
def test_a_class_that_derives_from_something_else(tmp_path: Path, above: str) -> None:
    step = STEP.format("import torch\nimport dist\n", FSDP, "dist.wrap(net)", "dist.Synced")
    home = HOME.format("Synced", above, "Synced").replace("import torch\n", "import torch.distributed.fsdp\n")
    found = after(tmp_path, {"dist.py": home, "train.py": step}, "train.py")
    assert "return model.module(data)\n" not in found
