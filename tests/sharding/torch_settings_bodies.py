"""What torch's own settings do to a prepared model, and what they would do in place of ours."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.torch_compat.pending_gradients_bodies import Experts, Mixture


HAS_CUSTOM_COMMUNICATION = hasattr(FSDPModule, "set_custom_all_gather")
"""torch 2.7 has none."""
HAS_UNUSED = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
"""torch 2.13, which has ``replicate`` on FSDP2 as well."""


class _Counted:
    """torch's own communication, which counts its calls; memory comes from a buffer of its own."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.calls = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        made: torch.Tensor = self._own.allocate(size, dtype=dtype, device=device)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._own(*args, **kwargs)


def _own_communication() -> tuple[_Counted, _Counted]:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

    return _Counted(DefaultAllGather()), _Counted(DefaultReduceScatter())


def _train(model: Any, skips: bool = False) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses: list[float] = []
    with_gradient: list[str] = []
    for step in range(2):
        generator = torch.Generator().manual_seed(5 * step + dist.get_rank())
        x = torch.randn(4, 3, generator=generator)
        loss = model(x, 1, skips and step == 1).square().mean()
        loss.backward()
        losses.append(loss.item())
        with_gradient = sorted(
            name.replace("_fsdp_wrapped_module.", "")
            for name, param in model.named_parameters()
            if param.grad is not None
        )
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "with gradient": with_gradient}


def _make() -> Mixture:
    torch.manual_seed(4)
    return Mixture()


def _prepared(**more: Any) -> Mixture:
    keywords = {name: more.pop(name) for name in ("skipped_units", "communication") if name in more}
    return prepare_fully_shard(
        _make(), {"auto_wrap_policy": {Experts}, "device_id": "cpu", **more}, **keywords
    )


def _units(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _under_fsdp1(strategy: ShardingStrategy, *, skips: bool) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    policy = ModuleWrapPolicy({Experts})
    options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    model = FSDP(_make(), sharding_strategy=strategy, auto_wrap_policy=policy, **options)
    return _train(model, skips)


def custom_communication(by_keyword: bool, **more: Any) -> dict[str, Any]:
    """Train with communication of one's own in every unit."""
    gather, reduction = _own_communication()
    if by_keyword:
        model = _prepared(communication={"all_gather": gather, "reduce_scatter": reduction}, **more)
    else:
        model = _prepared(**more)
        for unit in _units(model):
            unit.set_custom_all_gather(gather)
            unit.set_custom_reduce_scatter(reduction)
    found = _train(model)
    return {
        "same": found == _train(_prepared(**more)),
        "gathers": gather.calls,
        "reductions": reduction.calls,
    }


def memory_of_the_group() -> str:
    """Train with the group's memory, which gloo does not have: torch says so where a unit asks for it."""
    model = _prepared(communication={"allocate_memory_from_process_group": True})
    try:
        return "same" if _train(model) == _train(_prepared()) else "different"
    except RuntimeError as error:
        return str(error)


def unused() -> dict[str, Any]:
    """Leave a unit out: by FSDP1, by ours, and by torch's setting on units made by hand, and on ours."""
    by_hand: Any = _make()
    for unit in (by_hand.first, by_hand.second, by_hand.never, by_hand):
        fully_shard(unit, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    by_hand.set_reduce_scatter_unused_params(True)
    also: Any = _prepared()
    also.set_reduce_scatter_unused_params(True)
    models = {"prepared": _prepared(), "torch's setting": by_hand, "both": also}
    found = {name: _train(model, skips=True) for name, model in models.items()}
    return found | {"FSDP1": _under_fsdp1(ShardingStrategy.FULL_SHARD, skips=True)}


def replicated() -> dict[str, Any]:
    """Train replicas: by FSDP1 and ours as NO_SHARD, and by torch's ``replicate`` on FSDP2."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    by_hand: Any = _make()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in (by_hand.first, by_hand.second, by_hand.never, by_hand):
        replicate(unit, mesh=mesh)
    return {
        "FSDP1": _under_fsdp1(ShardingStrategy.NO_SHARD, skips=False),
        "prepared": _train(_prepared(sharding_strategy="NO_SHARD")),
        "replicate": _train(by_hand),
    }


def run() -> dict[str, Any]:
    found: dict[str, Any] = {}
    if HAS_CUSTOM_COMMUNICATION:
        found["plain"] = custom_communication(by_keyword=False)
        found["keyword"] = custom_communication(by_keyword=True)
        found["join"] = custom_communication(by_keyword=True, skipped_units="join")
        found["memory"] = memory_of_the_group()
    if HAS_UNUSED:
        found["unused"] = unused()
        found["replicated"] = replicated()
    return found
