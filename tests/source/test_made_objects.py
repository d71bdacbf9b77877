"""Accelerators and Fabrics of other files, whatever they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
SHARDS = """\
{imports}


class Mine{base}:
    def run(self, tools, cfg):
        {gets}
        optimizer = torch.optim.AdamW(model.parameters())
        {shards}
        torch.save(model.state_dict(), "x")
"""
BOTH = "model, optimizer = {}.prepare(model, optimizer)"
SETS_UP = "model = {}.setup(model)"
MADE = "from accelerate import Accelerator\n\n{}"
FABRIC = "import lightning as L\n\n{}"


def is_said(folder: Path, made: str, imports: str, gets: str, shards: str, base: str = "") -> bool:
    (folder / "fsdp.yaml").write_text(CONFIG)
    (folder / "setup.py").write_text(made)
    text = SHARDS.format(imports=imports, gets=gets, shards=shards, base=base)
    (folder / "train.py").write_text(f"import torch\n{text}")
    uses = [use for use in scan_paths([folder]).uses if use.path.endswith("train.py")]
    return "FM333" in {use.code for use in uses}


@pytest.mark.parametrize(
    ("made", "imports", "gets", "owner"),
    [
        ("hf = Accelerator()\n", "from setup import hf", "pass", "hf"),
        ("hf = Accelerator()\n", "from setup import hf as h", "pass", "h"),
        ("hf = Accelerator()\n", "import setup", "pass", "setup.hf"),
        ("def build(x):\n    return Accelerator(), x\n", "from setup import build", "h, x = build(1)", "h"),
        ("def build():\n    h = Accelerator()\n    return h\n", "import setup", "x = setup.build()", "x"),
    ],
)
def test_an_accelerator_that_another_file_makes(
    tmp_path: Path, made: str, imports: str, gets: str, owner: str
) -> None:
    made = MADE.format(made)
    assert is_said(tmp_path, made, imports, gets, BOTH.format(owner))
    assert not is_said(tmp_path, made.replace("Accelerator", "Helper"), imports, gets, BOTH.format(owner))
    # What is no Accelerator there has a method of this name as well.
    assert not is_said(tmp_path, made, imports, gets, BOTH.format("tools"))


def test_an_object_of_a_base_class(tmp_path: Path) -> None:
    made = MADE.format("class Base:\n    def __init__(self):\n        self.fabric = Accelerator()\n")
    given = "from setup import Base", "pass", BOTH.format("self.fabric")
    assert is_said(tmp_path, made, *given, base="(Base)")
    assert not is_said(tmp_path, made.replace("Accelerator", "Helper"), *given, base="(Base)")


@pytest.mark.parametrize(
    ("strategy", "expected"), [("strategy='fsdp'", True), ("strategy=FSDPStrategy()", True), ("", False)]
)
def test_a_fabric_that_another_file_makes(tmp_path: Path, strategy: str, *, expected: bool) -> None:
    made = FABRIC.format(f"fab = L.Fabric({strategy})\n")
    assert is_said(tmp_path, made, "from setup import fab", "pass", SETS_UP.format("fab")) is expected
    assert not is_said(tmp_path, made, "from setup import fab", "pass", SETS_UP.format("tools"))


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("tools.backward(1)", True),
        ("if tools.is_main_process: pass", True),
        ("tools.run()", False),
        ("other.backward(1)", False),
    ],
)
def test_what_an_object_is_asked_for_shows_what_it_is(tmp_path: Path, asks: str, *, expected: bool) -> None:
    shards = f"{BOTH.format('tools')}\n        {asks}"
    assert is_said(tmp_path, "", "", "pass", shards) is expected
