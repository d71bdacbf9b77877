"""Loaded by the server that ranks are forked from, before ``tests.frozen``.

What torch finds out at the first use of each kind it finds out here, once: in each rank that is a third of a
short run. The process group has no thread and no other process, so that nothing hinders a fork.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.torch_compat.fake_runs import fake_world


# So many ranks no test has: torch keeps what it finds out of a mesh, its group too, for every equal one.
_NOBODYS = 61


def _train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    get_optimizer_state_dict(model, optimizer)
    get_model_state_dict(model)


# On a machine with a GPU, backward starts threads, which a fork does not take along.
if not torch.cuda.is_available():
    random = torch.random.get_rng_state()
    with fake_world(_NOBODYS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        _train(FSDP(net, device_id=torch.device("cpu"), use_orig_params=True))
        _train(prepare_fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))))
    torch.random.set_rng_state(random)
