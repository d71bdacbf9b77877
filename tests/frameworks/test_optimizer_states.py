"""What torch's functions, by which frameworks' FSDP2 saves, make of an optimizer's own ``state_dict``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import full_optimizer_state_dict
from tests.ranks import run_ranks


class _Own(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {"state": super().state_dict(), "ema": [], "step": 1}


def _stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = _Own(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return optimizer


def states() -> dict[str, Any]:
    """Return what each way to save gives, or raises."""
    one = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=True)
    found: dict[str, Any] = {"fsdp1": list(FullyShardedDataParallel.optim_state_dict(one, _stepped(one)))}
    two = nn.Linear(8, 8)
    fully_shard(two)
    try:
        get_optimizer_state_dict(two, _stepped(two))
    except KeyError as error:
        found["fsdp2"] = error.args[0]
    own = prepare_fully_shard(nn.Linear(8, 8), {})
    found["here"] = list(full_optimizer_state_dict(own, _stepped(own)))
    return found


def test_torchs_function_raises_where_fsdp1s_left_out_what_is_added() -> None:
    for rank, seen in enumerate(run_ranks(states)):
        own = [] if rank else ["state", "param_groups"]  # of which rank 0 has the whole
        assert seen == {"fsdp1": ["state"], "fsdp2": "state", "here": own}
