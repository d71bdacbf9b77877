"""The FSDP2 loaders of the frameworks themselves, inside ranks: each returns what it loaded, whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
    fully_shard,
)

from fsdp_migrate.torch_compat.cpu_mends import mend_fsdp2_on_cpu
from tests.models import Block, Net
from tests.rank_bodies.conversions import _fsdp1, _full, _loss, _optimizer, _tokens


Found = dict[str, Any]


def load_torch(folder: str) -> Found:
    """Load by ``get_state_dict``, ``dcp.load`` and ``set_state_dict``."""
    model, optimizer = _fsdp2()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: Found = {"model": model_state, "optim": optimizer_state}
    load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return _whole(model, optimizer)


def load_torchtitan(folder: str) -> Found:
    """Load parameters from the root and a flattened optimizer, as torchtitan's CheckpointManager does."""
    model, optimizer = _fsdp2()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    state: Found = {**model_state, "optimizer": optimizer_state}
    load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict={name: state[name] for name in model_state},
        optim_state_dict=state["optimizer"],
        options=options,
    )
    return _whole(model, optimizer)


def load_accelerate(folder: str) -> Found:
    """Load by Accelerate's own functions, with a plugin of FSDP2, and train on for two steps."""
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin, load_fsdp_model, load_fsdp_optimizer

    model, optimizer = _fsdp2()
    form = "FULL_STATE_DICT" if Path(folder, "pytorch_model_fsdp.bin").exists() else "SHARDED_STATE_DICT"
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=form)
    accelerator: Any = PartialState(cpu=True)
    # Accelerator has it; it cannot be made for FSDP without a GPU.
    accelerator.is_fsdp2 = True
    load_fsdp_model(plugin, accelerator, model, folder)
    load_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)
    found = _whole(model, optimizer)
    found["losses"] = []
    for step in range(2, 4):
        loss = _loss(model, _tokens(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found["losses"].append(float(loss.detach()))
    if Path(folder, "scheduler.bin").exists():
        found["scheduler"] = torch.load(Path(folder, "scheduler.bin"), weights_only=True)
    return found


def save_full(folder: str, kind: str = "plain") -> None:
    """Save what ``save_fsdp1`` trains, whole, in the files of Accelerate and of Lightning's FSDPStrategy.

    Their own functions move it to the CPU, which on a CPU ends the process, or leaves moments corrupt.
    """
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    model, optimizer = _fsdp1(kind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(2):
        _loss(model, _tokens(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    outer: Any = torch.compile(model, backend="eager") if kind == "compiled" else model
    configs = FullStateDictConfig(rank0_only=True), FullOptimStateDictConfig(False, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        names, state = outer.state_dict(), FSDP.optim_state_dict(outer, optimizer)
    if dist.get_rank() == 0:
        Path(folder, "accelerate").mkdir(parents=True)
        torch.save(names, f"{folder}/accelerate/pytorch_model_fsdp.bin")
        torch.save(state, f"{folder}/accelerate/optimizer.bin")
        saved = {"pytorch-lightning_version": "2.6.6", "state_dict": names, "optimizer_states": [state]}
        torch.save({**saved, "epoch": 0, "global_step": 2, "loops": {}}, f"{folder}/state.ckpt")
    dist.barrier()


def load_lightning(folder: str) -> Found:
    """Load by the strategy of Lightning's Trainer."""
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import ModelParallelStrategy

    model, optimizer = _fsdp2(LightningModule)
    strategy = ModelParallelStrategy()
    strategy.model = strategy._lightning_module = model
    strategy.optimizers = [optimizer]
    found = {"meta": strategy.load_checkpoint(folder)}
    return {**_whole(model, optimizer), **found}


def _fsdp2(base: type[nn.Module] = nn.Module) -> tuple[Any, torch.optim.Optimizer]:
    warnings.simplefilter("ignore")
    torch.manual_seed(99)
    kind = Net if base is nn.Module else type("LightningNet", (Net, base), {})
    model = kind()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mend_fsdp2_on_cpu("cpu")  # torch 2.6's own FSDP2 does not run forward there
    return model, _optimizer(model)


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> Found:
    """Return everything under the names that ``save_fsdp1`` returns it under."""
    found: Found = {f"model.{name}": _full(value) for name, value in get_model_state_dict(model).items()}
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, moments in optimizer.state.items():
        for moment, value in moments.items():
            found[f"optimizer.{names[parameter]}.{moment}"] = _full(value)
    found["lr"] = [group["lr"] for group in optimizer.param_groups]
    found["decay"] = [group["weight_decay"] for group in optimizer.param_groups]
    return found


def load_composer(folder: str) -> Found:
    """Load by Composer's own Trainer under its FSDP2, without what only Composer writes."""
    from composer import Trainer
    from composer.utils import FSDP2Config

    from fsdp_migrate.checkpoint_convert.targets.composer import IGNORE_KEYS
    from tests.rank_bodies.composer_runs import _composer_model, _quieten

    _quieten()
    model = _composer_model()
    optimizer = _optimizer(model)
    trainer = Trainer(
        model=model,
        optimizers=optimizer,
        max_duration="1ba",
        parallelism_config={"fsdp": FSDP2Config()},
        device="cpu",
        precision="fp32",
        progress_bar=False,
        log_to_console=False,
        load_path=folder,
        load_ignore_keys=list(IGNORE_KEYS),
    )
    found = _whole(trainer.state.model, trainer.state.optimizers[0])
    return {key.replace(".net.", ".", 1): value for key, value in found.items()}
