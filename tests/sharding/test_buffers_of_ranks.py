"""Buffers that differ by rank, as statistics and queues do: whose values ``sync_module_states`` leaves."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, _init_utils

from fsdp_migrate import prepare_fully_shard
from tests.ranks import run_ranks


class Queue(nn.Module):
    """A trained layer, and modules to be ignored; every tensor holds its rank's number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.ignored = nn.Sequential(nn.BatchNorm1d(4))
        self.register_buffer("queue", torch.zeros(3))
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.detach().fill_(dist.get_rank() + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all of it."""
        out: torch.Tensor = self.ignored(self.norm(self.layer(x)))
        return out

    def values(self) -> dict[str, float]:
        """Return a value of each buffer, and of the parameters that are ignored."""
        named = {**dict(self.named_buffers()), "weight": self.ignored.get_parameter("0.weight")}
        return {name: float(tensor.detach().flatten()[0]) for name, tensor in named.items()}


def values_of_both(sync: bool) -> list[dict[str, float]]:
    """Return what a rank has under FSDP1, and under FSDP2."""
    # FSDP1 refuses the CPU here alone, because NCCL would.
    _init_utils._check_module_states_for_sync_module_states = lambda module_states: None
    fsdp1, fsdp2 = Queue(), Queue()
    FSDP(fsdp1, sync_module_states=sync, ignored_modules=[fsdp1.ignored], device_id=torch.device("cpu"))
    prepare_fully_shard(fsdp2, {"sync_module_states": sync, "ignored_modules": [fsdp2.ignored]})
    return [fsdp1.values(), fsdp2.values()]


@pytest.mark.parametrize("sync", [True, False])
def test_buffers_of_ranks_are_as_under_fsdp1(*, sync: bool) -> None:
    for rank, (fsdp1, fsdp2) in enumerate(run_ranks(values_of_both, sync)):
        assert fsdp2 == fsdp1
        assert fsdp2["queue"] == fsdp2["ignored.0.running_mean"] == (1 if sync else rank + 1)
        assert fsdp2["weight"] == rank + 1
