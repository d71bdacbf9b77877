"""Optimizers of a project's own that a registry of another package makes, and whose step is another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from optims import build_optimizer


def main(model, loader, config):
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
    optimizer = build_optimizer(model, config.optimizer)
    {}
"""
TOGETHER = TRAIN.format("model, optimizer = accelerator.prepare(model, optimizer)")
APART = TRAIN.format(
    "model = accelerator.prepare(model)\n    optimizer, loader = accelerator.prepare(optimizer, loader)"
)
OTHERS = TRAIN.format("model = accelerator.prepare(model)\n    scheduler = accelerator.prepare(scheduler)")
WRAPPED = f"{FSDP}from optims import build_optimizer\nmodel = FSDP(net)\nbuild_optimizer(model, config)\n"
DDPS = (
    f"{FSDP}from torch.nn.parallel import DistributedDataParallel\nfrom optims import build_optimizer\n"
    "def other(net):\n    return FSDP(net)\ndef main(net, c):\n    return build_optimizer(net, c)\n"
)
OPTIMS = """\
import torch
from came_pytorch import CAME
from mmcv.runner import build_optimizer as mm_build_optimizer, OPTIMIZER_BUILDERS, OPTIMIZERS


def build_optimizer(model, config):
    optimizer = {}
    return optimizer


@{}
class Own({}):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
{}
"""
MAKES, REGISTERS = "mm_build_optimizer(model, config)", "OPTIMIZERS.register_module()"
STEP = "    def step(self, closure=None):\n        self.param_groups[0]['params'][0].grad.norm()\n"
SUPER = "    def step(self, closure=None):\n        return super().step(closure)\n"


def said(folder: Path, train: str, optims: str) -> list[str]:
    (folder / "train.py").write_text(train)
    (folder / "optims.py").write_text(optims)
    found = [use for use in scan_paths([folder]).uses if use.code == "FM445" and use.action == "commented"]
    assert all(use.path.endswith("optims.py") for use in found)
    return [use.becomes for use in found]


@pytest.mark.parametrize(
    ("train", "is_said"),
    [(TOGETHER, True), (APART, True), (WRAPPED, True), (OTHERS, False), (DDPS, False)],
)
def test_a_registered_class_is_told_where_sharded_models_come(
    tmp_path: Path, train: str, *, is_said: bool
) -> None:
    found = said(tmp_path, train, OPTIMS.format(MAKES, REGISTERS, "CAME", ""))
    assert ["came_pytorch.CAME, which is not torch's" in text for text in found] == [True] * is_said


@pytest.mark.parametrize(
    ("makes", "registers", "base", "step", "says"),
    [
        ("OPTIMIZERS.build(config, model)", REGISTERS, "CAME", "", "came_pytorch.CAME"),
        (MAKES, REGISTERS, "CAME", SUPER, "came_pytorch.CAME"),
        (MAKES, REGISTERS, "torch.optim.LBFGS", "", "one vector of all gradients"),
        (MAKES, REGISTERS, "torch.optim.Optimizer", STEP, "DTensors of their own shapes"),
        (MAKES, REGISTERS, "CAME", STEP, "DTensors of their own shapes"),
        (MAKES, REGISTERS, "torch.optim.AdamW", "", None),
        (MAKES, "OPTIMIZER_BUILDERS.register_module()", "CAME", "", None),
        (MAKES, REGISTERS, "object", STEP, None),
        ("torch.optim.SGD(model.parameters())", REGISTERS, "CAME", "", None),
        ("make(model, config)", REGISTERS, "CAME", "", None),
    ],
)
def test_whose_step_a_registered_class_has(
    tmp_path: Path, makes: str, registers: str, base: str, step: str, says: str | None
) -> None:
    found = said(tmp_path, TOGETHER, OPTIMS.format(makes, registers, base, step))
    assert [says in text for text in found if says] == [True] * len(found)
    assert bool(found) is (says is not None)


def test_a_class_out_of_a_dict_derives_from_another_packages(tmp_path: Path) -> None:
    table = (
        "from came_pytorch import CAME\n{name} = {{}}\ndef register(cls):\n    {name}[cls.__name__] = cls\n"
        "    return cls\ndef build_optimizer(model, config):\n"
        "    return {name}[config.type](model.parameters())\n@register\nclass Own(CAME):\n    pass\n"
    )
    assert len(said(tmp_path, TOGETHER, table.format(name="OPTIMIZERS"))) == 1
    assert said(tmp_path, TOGETHER, table.format(name="AVERAGES")) == []


@pytest.mark.parametrize(
    ("base", "made", "says"),
    [
        ("came.CAME", "optimizer = Own(model.parameters())", "came.CAME, which is not torch's"),
        ("came.CAME", "opt = Own(model.parameters())", "came.CAME, which is not torch's"),
        ("torch.optim.LBFGS", "x = Own(model.parameters())", "one vector of all gradients"),
        ("came.CAME", "average = Own(model.parameters())", None),
        ("came.CAME", "optimizer = Own(other.parameters())", None),
        ("torch.optim.AdamW", "optimizer = Own(model.parameters())", None),
    ],
)
def test_whose_step_a_class_of_the_same_file_has(base: str, made: str, says: str | None) -> None:
    code = f"{FSDP}import came, torch\nclass Own({base}):\n    pass\nmodel = FSDP(net)\n{made}\n"
    found = [use for use in uses(code, header="") if use.code == "FM445" and use.action == "commented"]
    assert [says in use.becomes for use in found if says] == [True] * len(found)
    assert bool(found) is (says is not None)
