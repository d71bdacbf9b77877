"""What the installed Accelerate makes of its launcher's settings, against what is claimed of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.engine.claims import ACCELERATE, ACCELERATE_UNREAD
from tests.frameworks.claims import run, wrong


pytestmark = pytest.mark.any_torch


PLUGIN = """
import json, os, sys
from accelerate.utils import FullyShardedDataParallelPlugin
found = []
for environment in json.loads(sys.argv[1]):
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        del os.environ[name]
    os.environ.update(environment)
    try:
        plugin = FullyShardedDataParallelPlugin()
        found.append({"version": getattr(plugin, "fsdp_version", 1), "state": plugin.state_dict_type.name,
                      "prefetch": plugin.backward_prefetch is not None,
                      "strategy": str(plugin.sharding_strategy),
                      "reshard": getattr(plugin, "reshard_after_forward", None)})
    except ValueError as error:
        found.append({"error": str(error)})
print(json.dumps(found))
"""
FLAGS = """
import inspect, json
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import launch
flags = {action.dest for action in launch_command_parser()._actions}
source = inspect.getsource(launch)
print(json.dumps({"flags": sorted(flags), "read": source.count('"fsdp_ignored_modules"')}))
"""


POLICIES = """
import inspect, json, os
from torch import nn
from accelerate.utils import FullyShardedDataParallelPlugin
found = {}
os.environ["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT"
casts = {}
for version in ("1", "2"):
    os.environ["FSDP_VERSION"] = version
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision("bf16")
    casts[version] = plugin.mixed_precision_policy
one, two = casts["1"], casts["2"]
found["precision_by_unit"] = (
    two.cast_forward_inputs and two.output_dtype is two.param_dtype is one.param_dtype is one.buffer_dtype
    and one.cast_root_forward_inputs and not one.cast_forward_inputs
)
from accelerate import Accelerator
code = {name: inspect.getsource(getattr(Accelerator, name)) for name in ("prepare_model", "_prepare_fsdp2")}
found["no_autocast"] = "autocast" in code["prepare_model"] and "autocast" not in code["_prepare_fsdp2"]
plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=10)
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(1, 1)))
kind = {"auto_wrap_policy_type": "size"}  # an argument of older versions
known = inspect.signature(fsdp2_prepare_auto_wrap_policy).parameters
kind = {name: value for name, value in kind.items() if name in known}
policy = fsdp2_prepare_auto_wrap_policy(plugin, model=model, **kind)
try:
    units = [policy(module) for module in (model[0], model[0][0], model[0][1])]
except AttributeError:  # of `module.numel()`
    units = []
found["size_counts_children"] = units == [True, True, False]
found["size_takes_containers"] = bool(units) and policy(nn.ModuleList(model))
try:
    FullyShardedDataParallelPlugin(forward_prefetch=True)
    found["forward_prefetch_refused"] = False
except ValueError:
    found["forward_prefetch_refused"] = True
from importlib.metadata import version
from types import SimpleNamespace
import torch
import torch.distributed.fsdp
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from fsdp_migrate.doctor.accelerate_units import accelerate_units
class Model(nn.Module):
    def __init__(self, tied, base_model_prefix):
        super().__init__()
        self.base_model_prefix = base_model_prefix
        self.embed, self.norm, self.head = nn.Embedding(2, 2), nn.LayerNorm(2), nn.Linear(2, 2)
        self.inner = nn.ModuleDict({"first": nn.RMSNorm(2)})
        if tied:
            self.head.weight = self.embed.weight
    def get_input_embeddings(self):
        return self.embed
    def get_output_embeddings(self):
        return self.head
calls = []
real = torch.distributed.fsdp.fully_shard
def record(unit, **_):
    calls.append(unit if isinstance(unit, list) else [unit])
torch.distributed.fsdp.fully_shard = record
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
)
asked = SimpleNamespace(
    state=SimpleNamespace(fsdp_plugin=plugin), device=torch.device("cpu"), mixed_precision="no",
    is_main_process=True,
)
made, found["units_agree"] = [], True
for tied, prefix in ((False, ""), (True, ""), (True, "inner"), (True, "absent")):
    calls.clear()
    model = Model(tied, prefix)
    names = {module: name for name, module in model.named_modules()}
    fsdp2_prepare_model(asked, model)
    # The root is last.
    made.append([sorted(names[each] for each in unit) for unit in calls[:-1]])
    ours = {}
    for module, unit in accelerate_units(model, None, version("accelerate")).items():
        ours.setdefault(unit, []).append(names[module])
    found["units_agree"] &= sorted(made[-1]) == sorted(sorted(unit) for unit in ours.values())
torch.distributed.fsdp.fully_shard = real
found["embeddings_apart"] = made[0] == [["embed"], ["head", "norm"]]
found["tied_in_one_unit"] = made[1] == [["embed", "head", "norm"]]
from torch import distributed as dist
from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.Tensor.cuda = lambda self: self  # to which 1.7 and older send each weight
main = SimpleNamespace(is_main_process=True)
refused = []
layers = [nn.Linear(2, 2), nn.BatchNorm1d(2)]
for own in (nn.Sequential(*layers), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))):
    state = own.state_dict()
    real(own.to("meta"))
    try:
        fsdp2_load_full_state_dict(main, own, state)
        refused.append("")
    except (AttributeError, ValueError) as error:
        refused.append(str(error))
found["loads_not_all"] = [bool(each) for each in refused] == [True, True, False]
class Within(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Embedding(2, 2), nn.LayerNorm(2))
    def get_input_embeddings(self):
        return self.part[0]
stopped = []
for classes in (["Sequential"], ["Sequential", "Embedding"]):
    by_class = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=classes,
        cpu_ram_efficient_loading=False,
    )
    asked.state.fsdp_plugin = by_class
    try:
        fsdp2_prepare_model(asked, Within())
        stopped.append(False)
    except (AssertionError, TypeError):
        stopped.append(True)
asked.state.fsdp_plugin = plugin
found["carves_units"] = stopped == [True, False]
import inspect
sent = inspect.getsource(fsdp2_prepare_model).split("fsdp2_load_full_state_dict(")[-2]
found["sends_no_4bit"] = "cpu_ram_efficient_loading and not model_has_params4bit:" in sent
plugin.cpu_ram_efficient_loading = True
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
plugin.ignored_modules = [model[0]]
fsdp2_prepare_model(asked, model)
found["ignores_nothing"] = hasattr(model[0].weight, "full_tensor")
plugin.ignored_modules = None
class Ties(nn.Sequential):
    def tie_weights(self):
        self[1].weight = self[0].weight
stayed = []
for kind, plugin.cpu_ram_efficient_loading in ((nn.Sequential, True), (Ties, True), (nn.Sequential, False)):
    model = kind(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    fsdp2_prepare_model(asked, model)
    stayed.append(model[1].weight is model[0].weight)
found["tears_ties"] = stayed == [False, True, True]
plugin.set_mixed_precision("bf16")
raised = []
for dtype in (torch.float32, torch.bfloat16):
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(2, 2)))
    for name, buffer in model.named_buffers():
        if name.endswith(("_u", "_v")):
            buffer.data = buffer.data.to(dtype)
    fsdp2_prepare_model(asked, model)
    try:
        model(torch.ones(2, 2))
        raised.append(False)
    except RuntimeError as error:
        raised.append("dtype" in str(error))
found["casts_no_buffers"] = raised == [True, False]
from accelerate import Accelerator
Accelerator.is_fsdp2 = property(lambda self: True)  # which no Accelerator is on a CPU
try:
    Accelerator(cpu=True).prepare(nn.Linear(2, 2))
    found["prepared_together"] = False
except ValueError as error:
    found["prepared_together"] = "optimizer" in str(error)
low = [nn.Linear(2, 2).bfloat16() for _ in range(2)]
model = nn.Sequential(nn.Linear(2, 2), low[0], low[1].requires_grad_(False))
asked.mixed_precision = "bf16"
fsdp2_prepare_model(asked, model)
dtypes = [each.weight.dtype for each in model]
found["trained_in_float32"] = dtypes == [torch.float32, torch.float32, torch.bfloat16]
print(json.dumps(found))
"""


# What a machine with CUDA would be asked for: nothing is started, the first call that would is told.
GROUPS = """
import json, os, sys
import torch
import accelerate.accelerator
from accelerate import Accelerator, PartialState
try:
    from accelerate.parallelism_config import ParallelismConfig
except ImportError:  # before 1.10
    ParallelismConfig = None
names = ("ACCELERATE_USE_FSDP", "FSDP_OFFLOAD_PARAMS", "FSDP_STATE_DICT_TYPE")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
class Asked(Exception):
    pass
def asked(backend=None, **_):
    raise Asked(backend)
torch.cuda.is_available = lambda: True
torch.distributed.init_process_group = asked
groups, plugins = [], []
for environment in json.loads(sys.argv[1]):
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(environment)
    PartialState._reset_state()
    try:
        PartialState()
    except Asked as backend:
        groups.append(str(backend))
class Plugin(accelerate.accelerator.FullyShardedDataParallelPlugin):
    def __post_init__(self):
        raise Asked("plugin")
accelerate.accelerator.FullyShardedDataParallelPlugin = Plugin
for value in ("true", "1", "True"):
    os.environ["ACCELERATE_USE_FSDP"] = value
    PartialState._reset_state()
    try:
        Accelerator()
    except Asked as what:
        plugins.append(str(what))
os.environ.update(PARALLELISM_CONFIG_DP_REPLICATE_SIZE="2", PARALLELISM_CONFIG_DP_SHARD_SIZE="4")
mesh = ParallelismConfig and ParallelismConfig()
print(json.dumps([groups, plugins, mesh and [mesh.dp_replicate_size, mesh.dp_shard_size]]))
"""


@cache
def flags_read() -> dict[str, Any]:
    """Return the launcher's flags, and how often it reads of modules that are ignored."""
    found: dict[str, Any] = run(FLAGS)
    return found


def test_what_is_claimed_of_accelerate() -> None:
    two = {"FSDP_VERSION": "2"}
    one, alone, sharded, full, local, fifth, unread = run(
        PLUGIN,
        [
            {"FSDP_VERSION": "1", "FSDP_RESHARD_AFTER_FORWARD": "SHARD_GRAD_OP"},
            two,
            {**two, "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"},
            {**two, "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"},
            {**two, "FSDP_STATE_DICT_TYPE": "LOCAL_STATE_DICT"},
            {"FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": "5"},
            {**two, "FSDP_SHARDING_STRATEGY": "5"},
        ],
    )
    flags = set(flags_read()["flags"])
    on, offload = {"ACCELERATE_USE_FSDP": "true"}, {"FSDP_OFFLOAD_PARAMS": "true"}
    full_state = {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
    groups, switched, mesh = run(
        GROUPS,
        [on, offload, {**offload, "ACCELERATE_USE_FSDP": "1"}, {**on, **offload}, {**on, **full_state}],
    )
    found = {
        "gloo_by_variables": groups == ["nccl"] * 3 + ["cuda:nccl,cpu:gloo"] * 2,
        "true_switches_on": switched[0] == "plugin" and switched[1] != "plugin",
        "any_case_switches_on": switched[2] == "plugin",
        "mesh_by_variables": mesh == [2, 4],
        "state_by_version": (one["state"], alone.get("state")) == ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
        "strategy_by_variable": fifth["strategy"].endswith("_HYBRID_SHARD_ZERO2")
        and unread.get("reshard") is True,
        "fsdp2": sharded.get("version") == 2,
        "full_state_dict": full.get("state") == "FULL_STATE_DICT",
        "prefetch_policy_unread": "fsdp_backward_prefetch_policy" not in flags,
        "no_prefetch": one["prefetch"] is False,
        "local_refused": "error" in local,
        "reshard_unread": one["strategy"].endswith("FULL_SHARD") and "fsdp_sharding_strategy" in flags,
        **run(POLICIES),
    }
    assert found.pop("units_agree")
    assert wrong(ACCELERATE, "accelerate", found) == []


def test_the_launcher_has_a_flag_for_every_key_but_those_that_are_unread() -> None:
    read = flags_read()
    flags = {name.removeprefix("fsdp_") for name in read["flags"]}
    flags |= {"ignored_modules"} if read["read"] else set()
    spellings = {name for key in ACCELERATE_KEYS for name in (key.name, *key.aliases)}
    newer = {"activation_checkpointing_offload", "ignored_modules"}
    assert spellings - flags - newer == ACCELERATE_UNREAD
