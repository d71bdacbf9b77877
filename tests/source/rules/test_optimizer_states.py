"""An optimizer's own ``state_dict``, where frameworks shard its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAID = "by torch's get_optimizer_state_dict"
WRAPPER = (
    "import torch\n\n\nclass Averaging(torch.optim.Optimizer):\n"
    "    def __init__(self, optimizer):\n        self.optimizer = optimizer\n\n"
    "    def step(self, closure=None):\n        return self.optimizer.step(closure)\n\n"
    "    def state_dict(self):\n        return {}\n\n\n"
)
OWN = '{"state": self.optimizer.state_dict(), "ema": self.ema}'
CALLBACK = (
    "from lightning import Callback\n\n\nclass Ema(Callback):\n    def on_fit_start(self, trainer, module):\n"
    "        trainer.optimizers = [Averaging(each) for each in trainer.optimizers]\n"
)
TRAIN = "import lightning as L\nfrom ema import Ema\nL.Trainer(strategy='{}', devices=2, callbacks=[Ema()])\n"
ACCELERATE = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=False))\n"
    "model, optimizer = accelerator.prepare(model, Averaging(torch.optim.SGD(model.parameters())))\n"
)


def said(folder: Path, files: dict[str, str], words: str = SAID) -> set[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return {each.path.rpartition("/")[2] for each in rewrite_paths([folder]).changed if words in each.after}


@pytest.mark.parametrize(
    ("returned", "is_said"),
    [
        (OWN, True),
        ("dict(base=self.optimizer.state_dict(), step=1)", True),
        ('{"base": self.optimizer.state_dict()}', True),
        ("self.optimizer.state_dict()", False),
        ('{**self.optimizer.state_dict(), "step": 1}', False),
        ('{"state": self.state, "param_groups": self.groups}', False),
    ],
)
def test_in_a_callback_of_lightning(tmp_path: Path, returned: str, *, is_said: bool) -> None:
    wrapper = WRAPPER.replace("{}", returned)
    files = {"ema.py": wrapper + CALLBACK, "train.py": TRAIN.format("fsdp")}
    assert said(tmp_path, files) == ({"ema.py"} if is_said else set())
    apart = {"own.py": wrapper, "ema.py": f"from own import Averaging\n{CALLBACK}"}
    assert said(tmp_path, files | apart) == ({"own.py"} if is_said else set())
    assert said(tmp_path, apart | {"train.py": TRAIN.format("ddp")}) == set()


def test_beside_accelerate(tmp_path: Path) -> None:
    wrapper = WRAPPER.replace("{}", OWN)
    assert said(tmp_path, {"train.py": wrapper + ACCELERATE}) == {"train.py"}
    assert (
        said(tmp_path, {"train.py": (wrapper + ACCELERATE).replace("fsdp_plugin=Fu", "plugins=Nu")}) == set()
    )


def test_what_the_source_shards_itself_is_saved_by_this_package(tmp_path: Path) -> None:
    own = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    made = "optimizer = Averaging(torch.optim.SGD(model.parameters()))\n"
    assert said(tmp_path, {"train.py": WRAPPER.replace("{}", OWN) + own + made}) == set()


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("self, sd", True),
        ("self, states, strict=True", True),
        ("self, state_dict", False),
        ("self, *, state_dict", False),
        ("self, *args, **kwargs", False),
    ],
)
def test_a_load_by_another_name_than_torchs(tmp_path: Path, asked: str, *, is_said: bool) -> None:
    load = f"    def load_state_dict({asked}):\n        self.optimizer.load_state_dict(sd)\n\n"
    wrapper = WRAPPER.replace("{}", "self.optimizer.state_dict()").replace(
        "    def state_dict", f"{load}    def state_dict"
    )
    files = {"ema.py": wrapper + CALLBACK, "train.py": TRAIN.format("fsdp")}
    words = "calls this with `state_dict=`"
    assert said(tmp_path, files, words) == ({"ema.py"} if is_said else set())
    assert said(tmp_path, {**files, "train.py": TRAIN.format("ddp")}, words) == set()
