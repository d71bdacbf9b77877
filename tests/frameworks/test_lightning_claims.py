"""What the installed Lightning does, against what is claimed of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.engine.claims import LIGHTNING, LIGHTNING_SETTINGS
from fsdp_migrate.adapters.lightning import TRAINER
from tests.frameworks.claims import run, wrong


pytestmark = pytest.mark.any_torch


PROBE = """
import json, logging, sys
logging.disable()
import torch
import lightning.pytorch as pl
from lightning.pytorch.plugins.precision.fsdp import FSDPPrecision
found = {}
try:
    from lightning.pytorch.strategies import ModelParallelStrategy
    found["model_parallel"] = True
except ImportError:
    found["model_parallel"] = False
def trains(precision):
    try:
        pl.Trainer(accelerator="cpu", devices=1, precision=precision, logger=False,
                   enable_progress_bar=False, strategy=ModelParallelStrategy())
    except ValueError as error:
        return "precision" not in str(error)
    return True
found["no_16_mixed"] = found["model_parallel"] and trains("bf16-mixed") and not trains("16-mixed")
config = FSDPPrecision("bf16-mixed").mixed_precision_config
dtypes = {config.param_dtype, config.reduce_dtype, config.buffer_dtype}
found["precision_casts"] = dtypes == {torch.bfloat16}
import inspect
from lightning.pytorch.strategies import FSDPStrategy, StrategyRegistry
heeds = [
    "_layer_sync.apply" in inspect.getsource(inspect.getmodule(strategy))
    for strategy in (FSDPStrategy, ModelParallelStrategy if found["model_parallel"] else FSDPStrategy)
]
wraps = [
    "_LightningModuleWrapperBase" in inspect.getsource(inspect.getmodule(strategy))
    for strategy in (FSDPStrategy, ModelParallelStrategy if found["model_parallel"] else FSDPStrategy)
]
found["wrapper_in_names"] = any(wraps)
found["no_sync_batchnorm"] = heeds == [True, False]
given = FSDPStrategy(auto_wrap_policy=print, activation_checkpointing_policy=print)
found["one_name_is_a_policy"] = (
    given.kwargs["auto_wrap_policy"] is print
    and given._activation_checkpointing_kwargs["auto_wrap_policy"] is print
)
def refuses(name):
    try:
        ModelParallelStrategy(**{name: None})
    except TypeError:
        return True
    return False
names = ("auto_wrap_policy", "sharding_strategy", "limit_all_gathers", "cpu_offload", "state_dict_type")
found["refuses_fsdps"] = found["model_parallel"] and all(map(refuses, names))
kept = set(json.loads(sys.argv[1]))
found["settings_are_fsdp1s"] = found["model_parallel"] and (
    kept <= {*dir(FSDPStrategy), *vars(FSDPStrategy())}
    and kept.isdisjoint({*dir(ModelParallelStrategy), *vars(ModelParallelStrategy())})
)
from lightning.pytorch.utilities import compile as compiled
def takes(strategy):
    module = pl.LightningModule()
    module._compiler_ctx = {}
    try:
        compiled._verify_strategy_supports_compile(module, strategy())
    except RuntimeError:
        return False
    return True
found["refuses_compiled"] = (
    found["model_parallel"] and takes(FSDPStrategy) and not takes(ModelParallelStrategy)
)
from lightning.pytorch.utilities.consolidate_checkpoint import _format_checkpoint
def consolidates(strategy):
    for name in ("model", "state_dict"):
        if f'{{"{name}": checkpoint.pop("state_dict")}}' in inspect.getsource(strategy.save_checkpoint):
            try:
                return "state_dict" in _format_checkpoint({name: {}})
            except KeyError:
                return False
found["folders_differ"] = found["model_parallel"] and (
    consolidates(FSDPStrategy) is True and consolidates(ModelParallelStrategy) is False
)
from lightning.pytorch.loops import utilities as loops
class Loop(loops._Loop):
    inference_mode = True
    def __init__(self, strategy):
        self.trainer = type("Trainer", (), {"accelerator": None, "strategy": strategy})
    @loops._no_grad_context
    def run(self):
        return torch.is_inference_mode_enabled()
found["tests_in_inference_mode"] = found["model_parallel"] and [
    Loop(strategy()).run() for strategy in (FSDPStrategy, ModelParallelStrategy)
] == [False, True]
if found["model_parallel"]:
    from lightning.fabric.strategies.model_parallel import _FSDPNoSync
    class Recording(_FSDPNoSync):
        def _set_requires_grad_sync(self, requires_grad_sync):
            self.left = requires_grad_sync
    left = []
    for enabled in (False, True):
        context = Recording(module=None, enabled=enabled)
        with context:
            pass
        left.append(context.left)
    found["leaves_reduction_off"] = left == [False, True]
else:
    found["leaves_reduction_off"] = False
found["fairscale_gone"] = "ddp_fully_sharded" not in StrategyRegistry
found["word_is_torchs"] = StrategyRegistry["fsdp"]["strategy"].__name__ == "FSDPStrategy"
class Asked(Exception):
    pass
def record(backend, **_):
    raise Asked(backend)
def asked_for(make, **more):
    asks = ModelParallelStrategy(process_group_backend="cpu:gloo,cuda:nccl", **more)
    try:
        make(accelerator="cpu", devices=1, strategy=asks)
    except Asked as error:
        return str(error) == "cpu:gloo,cuda:nccl"
    return False
def trainer(**more):
    pl.Trainer(logger=False, enable_progress_bar=False, **more).strategy.setup_environment()
def fabric(**more):
    lightning.fabric.Fabric(**more).launch()
if found["model_parallel"]:
    import lightning.fabric
    torch.distributed.init_process_group = record
    is_trainers = asked_for(trainer)
    from lightning.fabric.strategies import ModelParallelStrategy
    is_fabrics = asked_for(fabric, parallelize_fn=print)
found["backend_is_asked_for"] = found["model_parallel"] and is_trainers and is_fabrics
arguments = sorted(set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"})
print(json.dumps([found, arguments]))
"""


def test_what_is_claimed_of_lightning() -> None:
    found, arguments = run(PROBE, sorted(LIGHTNING_SETTINGS))
    assert wrong(LIGHTNING, "lightning", found) == []
    assert set(arguments) <= TRAINER
