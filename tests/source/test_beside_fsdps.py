"""Classes of other engines, which are no concern of FSDP's, beside the one that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BASE = """\
class CheckpointIO:
    def save(self, model: ModelWrapper, path):
        self.write(model, path)
    def write(self, model: ModelWrapper, path):
        raise NotImplementedError
class ModelWrapper:
    def __init__(self, module):
        self.module = module
    def unwrap(self):
        return self.module
"""
PLUGIN = (
    f"{FSDP}from base import CheckpointIO, ModelWrapper\n"
    "class FSDPModel(ModelWrapper):\n    def __init__(self, net):\n        super().__init__(net)\n"
    "        self.module = FSDP(net)\n"
    "class TorchFSDPCheckpointIO(CheckpointIO):\n    def write(self, model, path):\n"
    "        torch.save(model.unwrap().state_dict(), path)\n"
    "def main(net, io: CheckpointIO):\n    model = FSDPModel(net)\n    io.save(model, 'm.pt')\n"
)
OTHER = (
    "import torch\nfrom base import CheckpointIO, ModelWrapper\n"
    "class GeminiCheckpointIO(CheckpointIO):\n    def write(self, model: ModelWrapper, path):\n"
    "        self.keep(model.unwrap(), path)\n"
    "    def keep(self, model, path):\n        torch.save(model.state_dict(), path)\n"
)
HYBRID = f"{OTHER.replace('Gemini', 'HybridParallel')}class MoECheckpointIO(HybridParallelCheckpointIO):\n"
HYBRID += (
    "    def write(self, model: ModelWrapper, path):\n        torch.save(model.unwrap().state_dict(), path)\n"
)


def said(folder: Path, other: str, plugin: str = PLUGIN, base: str = BASE) -> list[str]:
    """Return the names of the files in which something is said of states."""
    for name, text in (("base", base), ("plugin", plugin), ("other", other)):
        (folder / f"{name}.py").write_text(text)
    codes = {"FM308", "FM333", "FM450"}
    uses = [use for use in scan_paths([folder]).uses if use.code in codes and use.action != "kept"]
    return sorted({use.path.rpartition("/")[2] for use in uses})


@pytest.mark.parametrize("other", [OTHER, HYBRID, OTHER.replace("Gemini", "TorchDDP")])
def test_nothing_is_said_of_another_engines_class(tmp_path: Path, other: str) -> None:
    assert said(tmp_path, other) == ["plugin.py"]


@pytest.mark.parametrize(
    ("other", "plugin", "base"),
    [
        # A class that is called by no other engine may be given FSDP's models.
        (OTHER.replace("Gemini", "Lora"), PLUGIN, BASE),
        # One that speaks of FSDP, or that FSDP's is made from, or is of another base.
        (f"{OTHER}        assert path != 'fsdp'\n", PLUGIN, BASE),
        (f"{OTHER}    def setup(self, model):\n        return wrap(model)\n", PLUGIN, BASE),
        (f"{OTHER}class HybridFSDPIO(GeminiCheckpointIO):\n    pass\n", PLUGIN, BASE),
        (OTHER, PLUGIN.replace("TorchFSDPCheckpointIO", "TorchCheckpointIO"), BASE),
        (OTHER, PLUGIN.replace("TorchFSDPCheckpointIO(CheckpointIO)", "TorchFSDPCheckpointIO"), BASE),
        (
            OTHER,
            PLUGIN,
            f"{BASE}def wrap(net):\n    ...\n".replace("raise NotImpl", "fsdp = 1; raise NotImpl"),
        ),
    ],
)
def test_of_others_it_is(tmp_path: Path, other: str, plugin: str, base: str) -> None:
    assert "other.py" in said(tmp_path, other, plugin, base)
