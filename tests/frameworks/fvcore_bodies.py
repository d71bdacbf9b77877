"""What a rank does with fvcore's Checkpointer and a sharded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import load_model_state_dict


def save_and_load(folder: str, whole: str, is_fsdp1: bool) -> dict[str, Any]:
    """Return what its file holds, what loading a whole state raises, and what our words to load it give."""
    from fvcore.common.checkpoint import Checkpointer

    class Own(Checkpointer):  # type: ignore[misc, unused-ignore]
        def _load_model(self, checkpoint: Any) -> None:
            load_model_state_dict(self.model, checkpoint.pop("model"), strict=False)

    def make() -> nn.Module:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        sharded = FullyShardedDataParallel(net, device_id=torch.device("cpu")) if is_fsdp1 else None
        return sharded or prepare_fully_shard(net, {})

    own = Path(folder, str(dist.get_rank()))
    own.mkdir()
    Checkpointer(make(), str(own)).save("last")
    held = torch.load(own / "last.pth", weights_only=False)["model"]["weight"]
    raised = ""
    try:
        Checkpointer(make()).load(whole)
    except RuntimeError as error:
        raised = str(error)
    model = make()
    Own(model).load(whole)
    state = model.state_dict()["weight"]
    whole_of = state.full_tensor() if isinstance(state, DTensor) else state
    return {"is_dtensor": isinstance(held, DTensor), "raised": raised, "loaded": whole_of.tolist()}
