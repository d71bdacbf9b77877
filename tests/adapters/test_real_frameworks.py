"""The frameworks themselves take what was written for them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.adapters.engine.settings import Settings


# The lanes have the same frameworks.
pytestmark = pytest.mark.any_torch


ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: object) -> object:
    """Run code in a process of its own (these libraries set the environment); it prints one JSON document."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: object = json.loads(done.stdout.splitlines()[-1])
    return found


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_PRE
  fsdp_forward_prefetch: true
  fsdp_offload_params: true
  fsdp_sharding_strategy: {strategy}
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: A, B
  fsdp_use_orig_params: false
mixed_precision: bf16
num_machines: 2
num_processes: 8
"""
# What `accelerate launch` does with a config, up to the plugin that the training script makes of it.
LAUNCH = """
import argparse, json, os, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.utils.launch import prepare_multi_gpu_env
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.parallelism_config import ParallelismConfig
found = []
for path in sys.argv[1:]:
    load_config_from_file(path)
    words = ["--config_file", path, "--machine_rank", "0", "--main_process_ip", "x"]
    words += ["--main_process_port", "1"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args([*words, "s.py"]))
    os.environ.update(prepare_multi_gpu_env(args))
    plugin = FullyShardedDataParallelPlugin()
    mesh = ParallelismConfig()
    found.append({
        "version": plugin.fsdp_version, "reshard": plugin.reshard_after_forward,
        "offload": type(plugin.cpu_offload).__name__, "classes": plugin.transformer_cls_names_to_wrap,
        "state": plugin.state_dict_type.name, "mesh": [mesh.dp_replicate_size, mesh.dp_shard_size],
    })
print(json.dumps(found))
"""


def test_accelerate_launches_what_was_written(tmp_path: Path) -> None:
    paths = []
    for strategy in ("FULL_SHARD", "2", "hybrid_shard"):
        paths.append(tmp_path / f"{strategy}.yaml")
        paths[-1].write_text(convert_text(ACCELERATE.format(strategy=strategy)).text)
    same = {
        "version": 2,
        "offload": "CPUOffloadPolicy",
        "classes": ["A", "B"],
        "state": "FULL_STATE_DICT",
    }
    assert run(LAUNCH, *paths) == [
        {**same, "reshard": True, "mesh": [1, 1]},
        {**same, "reshard": False, "mesh": [1, 1]},
        {**same, "reshard": True, "mesh": [2, 4]},
    ]


def test_accelerates_own_converter_has_nothing_left_to_do() -> None:
    from accelerate.commands.to_fsdp2 import (
        convert_config_to_fsdp2,
    )

    ours = YAML(typ="safe").load(convert_text(ACCELERATE.format(strategy="FULL_SHARD")).text)
    theirs = convert_config_to_fsdp2(YAML(typ="safe").load(ACCELERATE.format(strategy="FULL_SHARD")))
    # What theirs leaves as it was, or leaves to a default that is another one: docs/configs.md.
    different = {
        "fsdp_backward_prefetch_policy",
        "fsdp_state_dict_type",
        "fsdp_transformer_layer_cls_to_wrap",
    }
    mine, other = ours["fsdp_config"], theirs["fsdp_config"]
    assert {key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key)} == different
    assert convert_config_to_fsdp2(ours) is ours


TRAINING_ARGUMENTS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from transformers import TrainingArguments
found = []
for text in sys.argv[1:]:
    given = json.loads(text)
    args = TrainingArguments(output_dir="x", use_cpu=True, report_to=[], fsdp=given["fsdp"],
                             fsdp_config=given["fsdp_config"])
    names = ("fsdp_version", "reshard_after_forward", "cpu_offload", "auto_wrap_policy", "min_num_params")
    found.append([args.fsdp_plugin_args.get(name) for name in names])
print(json.dumps(found))
"""


def test_training_arguments_take_what_was_written() -> None:
    cases: list[tuple[str, dict[str, object], list[object]]] = [
        ("full_shard auto_wrap", {}, [2, True, None, "TRANSFORMER_BASED_WRAP", None]),
        ("hybrid_shard auto_wrap offload", {}, [2, True, True, "TRANSFORMER_BASED_WRAP", None]),
        (
            "shard_grad_op auto_wrap",
            {"fsdp_min_num_params": "1e3"},
            [2, False, None, "SIZE_BASED_WRAP", 1000],
        ),
        ("no_shard", {"use_orig_params": True}, [2, False, None, "NO_WRAP", None]),
    ]
    texts = [
        json.dumps({"output_dir": "x", "fsdp": fsdp, "fsdp_config": config}) for fsdp, config, _ in cases
    ]
    found = run(TRAINING_ARGUMENTS, *(convert_text(text).text for text in texts))
    assert found == [expected for _, _, expected in cases]


LIGHTNING = """
import json, logging, os, sys, tempfile, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
import lightning.pytorch as pl
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule

strategy, code = json.loads(sys.argv[1])

class Block(nn.Linear):
    pass

class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(4, 4), Block(4, 4))
        self.scale = nn.Parameter(torch.ones(4))

    def training_step(self, batch, index):
        return (self.blocks(batch) * self.scale).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    exec(code)

model = Lit()
path = tempfile.mkdtemp() + "/lit.ckpt"
version = pl.__version__
torch.save({"state_dict": model.state_dict(), "pytorch-lightning_version": version}, path)
loaded = Lit.load_from_checkpoint(path)
trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False,
                     strategy=ModelParallelStrategy(**strategy))
trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2))
print(json.dumps({"units": [name for name, module in model.named_modules() if isinstance(module, FSDPModule)],
                  "steps": trainer.global_step, "moved": bool((model.scale.full_tensor() != 1).all()),
                  "loaded": [isinstance(module, FSDPModule) for module in loaded.modules()].count(True)}))
"""


def test_lightning_trains_with_what_was_written() -> None:
    text = (
        "_target_: lightning.pytorch.strategies.FSDPStrategy\nsharding_strategy: SHARD_GRAD_OP\n"
        "auto_wrap_policy: [models.Block]\nstate_dict_type: sharded\n"
    )
    done = convert_text(text, settings=Settings(world_size=1))
    strategy = YAML(typ="safe").load(done.text)
    assert strategy.pop("_target_").endswith(".ModelParallelStrategy")
    found = run(LIGHTNING, json.dumps([strategy, done.blocks[0].code]))
    assert found == {"units": ["", "blocks.0", "blocks.1"], "steps": 2, "moved": True, "loaded": 0}


# The code of docs/loading.md, where Accelerate and the HF Trainer have saved; Lightning's hook asks for more.
LOADING = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from fsdp_migrate import load_checkpoint
from fsdp_migrate.runtime import end_process_group

folder, found = sys.argv[1], {}
path, CKPT = folder + "/state.pt", folder + "/saved"
torch.manual_seed(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x=None, labels=None, **_):
        out = self.up(x)
        return {"loss": out.square().mean(), "logits": out}

def save(model, optimizer, scheduler):
    names = [name for name, _ in model.named_parameters()]
    own = optimizer.state_dict()
    state = {names[number]: value for number, value in own["state"].items()}
    groups = [{**group, "params": [names[n] for n in group["params"]]} for group in own["param_groups"]]
    moments = {"state": state, "param_groups": groups}
    steps = scheduler.state_dict()
    torch.save({"model": model.state_dict(), "optimizer": moments, "lr_scheduler": steps}, path)
    os.mkdir(CKPT)
    torch.save(model.state_dict(), CKPT + "/pytorch_model_fsdp.bin")
    torch.save(moments, CKPT + "/optimizer.bin")
    for name in ("scheduler.bin", "scheduler.pt"):
        torch.save(steps, f"{CKPT}/{name}")

def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1)

def steps(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

old = Net(); own = adam(old); scheduler = steps(own)
old(torch.ones(1, 4))["loss"].backward(); own.step(); scheduler.step()
save(old, own, scheduler)

def same(model, optimizer, scheduler):
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    wanted = [state["exp_avg"] for state in own.state.values()]
    return [torch.equal(model.up.weight, old.up.weight), all(map(torch.equal, moments, wanted)), len(moments),
            scheduler.last_epoch]

from accelerate import Accelerator
from transformers import Trainer, TrainerCallback, TrainingArguments
accelerator = Accelerator(cpu=True)
model = Net()
optimizer = adam(model)
scheduler = steps(optimizer)
exec(sys.argv[2])
found["accelerate"] = same(accelerator.unwrap_model(model), optimizer.optimizer, scheduler.scheduler)

import lightning.pytorch as pl
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from fsdp_migrate.torch_compat.cpu_mends import mend_fsdp2_on_cpu

mend_fsdp2_on_cpu("cpu")  # torch 2.6's own FSDP2 does not run forward there

class Lit(pl.LightningModule, Net):
    def configure_model(self):
        fully_shard(self.up, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        optimizer = adam(self)
        return {"optimizer": optimizer, "lr_scheduler": steps(optimizer)}

    def training_step(self, batch, index):
        return self(batch)["loss"]

    def on_fit_start(self):
        (scheduler,) = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        load_checkpoint(path, self, self.trainer.optimizers, extra={"lr_scheduler": scheduler})
        weight, state = self.up.weight.full_tensor(), self.trainer.optimizers[0].state
        moments = [one["exp_avg"].full_tensor() for one in state.values()]
        wanted = [one["exp_avg"] for one in own.state.values()]
        found["lightning"] = [torch.equal(weight, old.up.weight), all(map(torch.equal, moments, wanted)),
                              len(moments), scheduler.last_epoch]

pl.Trainer(accelerator="cpu", devices=1, max_steps=1, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False, strategy=ModelParallelStrategy(1, 1)
           ).fit(Lit(), torch.utils.data.DataLoader(torch.ones(2, 4)))
end_process_group()
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
    os.environ.pop(name, None)

class Loading(LoadFSDP1):
    def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        super().on_train_begin(args, state, control, model, optimizer, lr_scheduler, **kwargs)
        found["hf"] = same(model, getattr(optimizer, "optimizer", optimizer), lr_scheduler)

model = Net()
optimizer = adam(model)
data = [{"x": torch.ones(4), "labels": torch.ones(1)}] * 2
arguments = TrainingArguments(output_dir=folder + "/hf", use_cpu=True, max_steps=1, report_to=[],
                              disable_tqdm=True, save_strategy="no")
Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, steps(optimizer)),
        callbacks=[Loading()]).train()
print(json.dumps(found))
"""


def test_a_checkpoint_is_loaded_where_each_framework_has_a_place_for_it(tmp_path: Path) -> None:
    page = (ROOT / "docs/loading.md").read_text().partition("## With a framework")[2]
    code = page.partition("```python\n")[2].partition("```")[0]
    found = run(LOADING, tmp_path, code)
    assert found == {name: [True, True, 2, 1] for name in ("accelerate", "lightning", "hf")}
