"""Frameworks and torch run what was rewritten: FSDP2 is asked for, and old checkpoints are read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source
from tests.ranks import ROOT
from tests.scripts import run_script


if TYPE_CHECKING:
    from pathlib import Path


SETTINGS = """\
import functools, json
import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.nn import TransformerEncoderLayer
from transformers import TrainingArguments

plugins = {
    "by class": FullyShardedDataParallelPlugin(
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision_policy=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy, transformer_layer_cls={TransformerEncoderLayer}
        ),
        cpu_offload=CPUOffload(offload_params=True),
        forward_prefetch=True,
        state_dict_type=StateDictType.SHARDED_STATE_DICT,
    ),
    "by size": FullyShardedDataParallelPlugin(
        fsdp_version=1,
        auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=1000),
        state_dict_config=FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    ),
    "modules": FullyShardedDataParallelPlugin(
        auto_wrap_policy=ModuleWrapPolicy({TransformerEncoderLayer}), state_dict_type="LOCAL_STATE_DICT"
    ),
}
layers = dict(transformer_layer_cls_to_wrap="TransformerEncoderLayer", limit_all_gathers=True)
arguments = {
    "dict": TrainingArguments(
        "x", use_cpu=True, report_to=[], fsdp="full_shard auto_wrap", fsdp_config=layers
    ),
    "list": TrainingArguments("x", use_cpu=True, report_to=[], fsdp=["shard_grad_op", "offload"]),
}
found = {
    name: [each.fsdp_version, each.reshard_after_forward, each.state_dict_type.name,
           getattr(each.auto_wrap_policy, "__name__", None), each.transformer_cls_names_to_wrap,
           each.min_num_params, type(each.cpu_offload).__name__,
           str(getattr(each.mixed_precision_policy, "reduce_dtype", None))]
    for name, each in plugins.items()
}
keys = ("fsdp_version", "reshard_after_forward", "state_dict_type", "auto_wrap_policy",
        "transformer_cls_names_to_wrap", "cpu_offload")
found |= {name: [each.fsdp_plugin_args.get(key) for key in keys] for name, each in arguments.items()}
print(json.dumps(found))
"""


def run(folder: Path, code: str) -> object:
    """Rewrite a script and run it in a process of its own; it prints one JSON document."""
    path = folder / "script.py"
    path.write_text(rewrite_source(code))
    command = [sys.executable, "-W", "ignore", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found: object = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.any_torch
def test_accelerate_and_the_hf_trainer_take_what_was_written(tmp_path: Path) -> None:
    by_class, by_size = "transformer_auto_wrap_policy", "size_based_auto_wrap_policy"
    layer = "TransformerEncoderLayer"
    full, sharded = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
    assert run(tmp_path, SETTINGS) == {
        "by class": [2, False, sharded, by_class, [layer], None, "CPUOffloadPolicy", "torch.float32"],
        "by size": [2, True, full, by_size, None, 1000, "OffloadPolicy", "None"],
        "modules": [2, True, sharded, by_class, [layer], None, "OffloadPolicy", "None"],
        "dict": [2, True, full, "TRANSFORMER_BASED_WRAP", layer, None],
        "list": [2, False, full, "NO_WRAP", None, True],
    }


LIGHTNING = """\
import json
import torch
from torch import nn
import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp import FSDPModule


class Block(nn.Linear):
    pass


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(4, 4), Block(4, 4))

    def training_step(self, batch, index):
        return self.blocks(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


model = Lit()
strategy = FSDPStrategy(
    auto_wrap_policy={Block},
    sharding_strategy="SHARD_GRAD_OP",
    activation_checkpointing_policy=None,
)
trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False, strategy=strategy)
trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2))
print(json.dumps([[name for name, module in model.named_modules() if isinstance(module, FSDPModule)],
                  trainer.global_step, type(trainer.strategy).__name__]))
"""


@pytest.mark.any_torch
def test_lightning_trains_with_the_hook_that_was_inserted(tmp_path: Path) -> None:
    assert run(tmp_path, LIGHTNING) == [["", "blocks.0", "blocks.1"], 2, "ModelParallelStrategy"]


CHECKPOINT = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

FOLDER = "<folder>"


class Block(nn.Linear):
    pass


def save(model: FSDP, optimizer, path, step):
    options = FullStateDictConfig(offload_to_cpu=False, rank0_only=True)
    optim_options = FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, options, optim_options)
    state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer), "step": step}
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def load(model: FSDP, optimizer, path):
    FSDP.set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()
    )
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optim"]))
    return state["step"]


def train(model, optimizer, start):
    for step in range(start, start + 2):
        torch.manual_seed(2 * step + dist.get_rank())
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(step, loss.item())
    return start + 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(Block(8, 8), nn.Tanh(), Block(8, 8), nn.Linear(8, 1))
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    old, new = os.path.join(FOLDER, "old.pt"), os.path.join(FOLDER, "new.pt")
    if not os.path.exists(old):
        save(model, optimizer, old, train(model, optimizer, 0))
    save(model, optimizer, new, train(model, optimizer, load(model, optimizer, old)))
    train(model, optimizer, load(model, optimizer, new))


main()
"""


def test_a_rewritten_script_reads_the_old_checkpoint_and_its_own(tmp_path: Path) -> None:
    printed = []
    for turn in (str, rewrite_source):
        path = tmp_path / "script.py"
        path.write_text(turn(CHECKPOINT.replace("<folder>", str(tmp_path))))
        output = run_script(ROOT / "tests" / "rank_scripts" / "one_after_the_other.py", path)
        printed.append(re.findall(r"^(\d) (\S+)$", output, re.MULTILINE))
    before, after = printed
    assert [step for step, _ in before] == list("012345")
    assert after == before[2:]
