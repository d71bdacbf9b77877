"""Branches of engines that FSDP excludes get no comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAINER = (
    "from transformers import Trainer, TrainingArguments\n\n\nclass Own(Trainer):\n"
    "    def _save_checkpoint(self, model, trial):\n        if {0}:\n"
    "            state = self.model_wrapped.state_dict()\n\n"
    "    def prepare(self):\n        print(self.is_fsdp_enabled)\n        if {0}:\n"
    "            self.model = self.accelerator.prepare(self.model)\n\n\n"
    "args = TrainingArguments(output_dir='x', fsdp='full_shard auto_wrap')\nOwn(model, args).train()\n"
)
BOTH = {"FM333", "FM449"}


def said(code: str, folder: Path) -> set[str]:
    (folder / "own.py").write_text(code)
    found = (use for use in scan_paths([folder]).uses if use.action in {"commented", "unclear"})
    return {use.code for use in found} - {"FM319", "FM358"}


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("is_sagemaker_mp_enabled()", False),
        ("self.use_apex and training", False),
        ("self.sharded_ddp is not None", False),
        ("self.sharded_ddp == ShardedDDPOption.SIMPLE", False),
        ("is_sagemaker_mp_enabled() or self.use_apex", False),
        ("not self.use_apex", True),
        ("self.sharded_ddp is None", True),
        ("is_sagemaker_mp_enabled() or rank == 0", True),
        ("rank == 0", True),
        ("args.strategy == 'deepspeed'", False),
        ("'deepspeed' in args.strategy and rank == 0", False),
        ("isinstance(self.strategy, DeepSpeedStrategy)", False),
        ("args.deepspeed is not None", False),
        ("not (args.strategy != 'deepspeed')", False),
        ("self.accelerator.distributed_type not in [DistributedType.FSDP, DistributedType.NO]", False),
        ("ok and self.accelerator.distributed_type != DistributedType.FSDP", False),
        ("args.strategy in ('deepspeed', 'fsdp')", True),
        ("args.strategy == 'deepspeed' or args.strategy == 'fsdp'", True),
        ("args.strategy != 'deepspeed'", True),
        ("not args.deepspeed", True),
        ("is_deepspeed_available()", True),
        ("self.accelerator.distributed_type in [DistributedType.FSDP]", True),
    ],
)
def test_states_and_preparing(tmp_path: Path, test: str, *, is_said: bool) -> None:
    assert said(TRAINER.format(test), tmp_path) == (BOTH if is_said else set())


def test_a_hook_that_such_a_branch_defines(tmp_path: Path) -> None:
    hook = "def hook(mod, opt):\n                opt.load_state_dict(load('x'))"
    code = TRAINER.format("self.use_apex").replace("state = self.model_wrapped.state_dict()", hook)
    assert said(code, tmp_path) == set()
    assert said(code.replace("if self.use_apex", "if self.other"), tmp_path) == {"FM449", "FM450"}
    for test in ("a.distributed_type != DistributedType.FSDP", "args.strategy == 'deepspeed'"):
        assert said(code.replace("self.use_apex", test), tmp_path) == set()
    asks = "if a.distributed_type == DistributedType.FSDP"
    assert said(code.replace("if self.use_apex", asks), tmp_path) == {"FM449", "FM450"}


QUANTIZED = (
    "import bitsandbytes as bnb\nimport lightning as L\nimport torch\n"
    "from lightning.fabric.plugins import BitsandbytesPrecision\n"
    "from lightning.fabric.strategies import FSDPStrategy\n\n\n"
    "def setup(quantize, devices):\n    strategy = 'auto'\n    if devices > 1:\n        if quantize:\n"
    "            raise NotImplementedError\n        strategy = FSDPStrategy()\n"
    "    fabric = L.Fabric(devices=devices, strategy=strategy)\n    main(fabric)\n\n\n"
    "def main(fabric):\n    model = fabric.setup_module(Net())\n"
    "    if isinstance(fabric.strategy.precision, BitsandbytesPrecision):\n"
    "        optimizer = bnb.optim.PagedAdamW(model.parameters())\n"
    "    else:\n        optimizer = torch.optim.AdamW(model.parameters())\n"
)


@pytest.mark.parametrize(
    ("old", "new", "is_said"),
    [
        ("raise NotImplementedError", "raise NotImplementedError", False),
        ("raise NotImplementedError", "print('slow')", True),
        ("isinstance(fabric", "ask(fabric", True),
    ],
)
def test_an_optimizer_of_quantization_that_shuts_fsdp_out(
    tmp_path: Path, old: str, new: str, *, is_said: bool
) -> None:
    assert ("FM445" in said(QUANTIZED.replace(old, new), tmp_path)) is is_said


APEX = "from apex import amp\namp.initialize(net, o)\n"
FUSED = (
    "import torch\nfrom apex.optimizers import FusedAdam\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "def main(net, args):\n    model = FSDP(net)\n    if args.use_apex:\n"
    "        optimizer = FusedAdam(model.parameters())\n"
    "        torch.save(optimizer.state_dict(), 'o.pt')\n"
)


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", True),
        (APEX, False),
        ("import transformers.trainer\n", False),
        ("from transformers import Trainer\n", False),
        ("# amp.initialize is what transformers calls\n", True),
    ],
)
def test_an_optimizer_of_apex_runs_with_fsdp(tmp_path: Path, more: str, *, is_said: bool) -> None:
    assert ("FM425" in said(f"{FUSED}{more}", tmp_path)) is is_said
