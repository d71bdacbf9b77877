"""Models that Accelerate prepares where it runs another strategy than FSDP, over files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch


TRAINER = """\
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin as Plugin
from wrapper import Wrapper


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy="FULL_SHARD"))

    def fit(self, model, optimizer):
        if self.accelerator.distributed_type == DistributedType.{kind}:
            prepare = self._prepare_one
        else:
            prepare = self._prepare_two
        return prepare(model, optimizer)

    def _prepare_one(self, model, optimizer):
        return self.accelerator.prepare(model, optimizer)

    def _prepare_two(self, model, optimizer):
        model, optimizer = self.accelerator.prepare(model, optimizer)
        return Wrapper(model), optimizer
"""
WRAPPER = """\
class Wrapper:
    def __init__(self, net):
        self.net = net

    def save(self):
        return self.net.state_dict()
"""
DIRECT = """\
    def now(self, model, optimizer):
        if self.accelerator.distributed_type {test} DistributedType.FSDP:
            model, optimizer = self.accelerator.prepare(model, optimizer)
            Wrapper(model)
"""


def is_named(folder: Path, trainer: str) -> bool:
    (folder / "wrapper.py").write_text(WRAPPER)
    (folder / "trainer.py").write_text(trainer)
    return any(use.code == "FM333" and "wrapper.py" in use.path for use in scan_paths([folder]).uses)


def test_what_a_method_of_another_launch_makes_holds_a_plain_model(tmp_path: Path) -> None:
    assert not is_named(tmp_path, TRAINER.format(kind="FSDP"))
    assert is_named(tmp_path, TRAINER.format(kind="MULTI_GPU"))
    public = TRAINER.format(kind="FSDP").replace("_prepare_two", "prepare_two")
    assert is_named(tmp_path, public)


@pytest.mark.parametrize(
    "more",
    [
        "    def again(self):\n        self._prepare_two(self.model, self.optimizer)\n",
        "    def by_name(self):\n        return getattr(self, '_prepare_two')\n",
        DIRECT.format(test="=="),
    ],
)
def test_one_that_may_be_fsdps_too_stays_named(tmp_path: Path, more: str) -> None:
    assert is_named(tmp_path, f"{TRAINER.format(kind='FSDP')}\n{more}")
    assert not is_named(tmp_path, f"{TRAINER.format(kind='FSDP')}\n{DIRECT.format(test='!=')}")


WRAPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from plain import save_plain


def run(args, model, info):
    model = FSDP(model) if args.engine == "fsdp" else model
    if {test}:
        pass
    else:
        save_plain(model, "m.pt")
"""
PLAIN = """\
import torch


def save_plain(model, path):
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        state = model.module.state_dict()
    else:
        state = model.state_dict()
    torch.save(state, path)
"""


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("info['engine'] == 'fsdp'", False),
        ("args.train_engine == 'torch_fsdp'", False),
        ("args.engine != 'fsdp'", True),
        ("args.format == 'fsdp'", True),
        ("args.engine == 'ddp'", True),
    ],
)
def test_a_function_that_another_engines_branch_calls(tmp_path: Path, test: str, *, is_said: bool) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "run.py").write_text(WRAPS.format(test=test))
    uses = [use for use in scan_paths([tmp_path]).uses if use.path.endswith("plain.py")]
    assert bool({use.code for use in uses} & {"FM308", "FM333", "FM450"}) is is_said
