"""Modules that keep something of themselves by ``get_extra_state``, as Transformer Engine's do."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


KINDS = ("tensor", "bytes", "dict")


class Scaled(nn.Linear):
    """A layer with an extra state of a kind; ``found`` is what was loaded."""

    def __init__(self, kind: str) -> None:
        super().__init__(4, 4)
        self.kind = kind
        self.found: Any = None

    def get_extra_state(self) -> Any:
        """Return a history of scales, in one of the forms that Transformer Engine has had."""
        if self.kind == "tensor":
            return torch.arange(1.0, 6.0)
        if self.kind == "dict":
            return {"amax": [1.0, 2.0], "scale": torch.ones(3)}
        stream = io.BytesIO()
        torch.save({"scale": torch.full((2,), 3.0)}, stream)
        stream.seek(0)
        return stream

    def set_extra_state(self, state: Any) -> None:
        """Keep what was loaded."""
        self.found = state


def _model() -> nn.Sequential:
    return nn.Sequential(*(Scaled(kind) for kind in KINDS))


def save_fsdp1(folder: str) -> dict[str, torch.Tensor]:
    """Save a model offloaded and sharded to ``sharded``, and whole to ``full.pt``; return its parameters."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = FSDP(_model(), auto_wrap_policy=ModuleWrapPolicy({Scaled}), device_id=torch.device("cpu"))
    with FSDP.state_dict_type(
        model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)
    ):
        save({"model": model.state_dict()}, checkpoint_id=Path(folder, "sharded"))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        whole = model.state_dict()
    if dist.get_rank() == 0:
        torch.save({"model": whole}, Path(folder, "full.pt"))
    return {name: value.clone() for name, value in whole.items() if "extra" not in name}


def load_fsdp2(folder: str) -> dict[str, Any]:
    """Load a checkpoint into an FSDP2 model; return its whole parameters and what the modules were given."""
    model = _model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = {"model": get_model_state_dict(model)}
    for name, value in state["model"].items():
        if isinstance(value, torch.Tensor):
            state["model"][name] = torch.zeros_like(value)
    load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    found: dict[str, Any] = {name: p.full_tensor() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    for layer in model:
        assert isinstance(layer, Scaled)
        given = layer.found
        found[layer.kind] = torch.load(given, weights_only=True) if layer.kind == "bytes" else given
    return found
