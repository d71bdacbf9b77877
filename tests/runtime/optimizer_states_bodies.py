"""The optimizer's state alone, out of a run and into one: FSDP1's own functions, and ours."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

from fsdp_migrate import load_checkpoint
from fsdp_migrate.runtime import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_state_dict,
    optim_state_dict_to_load,
    sharded_state_dict,
)
from tests.rank_bodies.parity import full
from tests.rank_bodies.runtime import backward, error_of, fsdp1, prepared, whole_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rank_bodies.parity import Tensors


def optimizer_of(model: Any, lr: float = 0.01) -> torch.optim.Optimizer:
    """Return an optimizer of three groups, one empty; the parameters are not in the model's order."""
    params = dict(model.named_parameters())
    biases = [params[name] for name in params if name.endswith("bias")]
    others = [params[name] for name in params if not name.endswith("bias")]
    groups = [
        {"params": [], "lr": lr * 3},
        {"params": biases, "weight_decay": 0.0},
        {"params": others, "lr": lr / 2},
    ]
    return torch.optim.AdamW(groups, lr=lr)


def _trained(model: Any) -> tuple[Any, torch.optim.Optimizer]:
    optimizer = optimizer_of(model)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return model, optimizer


def _fsdp1_state(model: Any, optimizer: torch.optim.Optimizer, *, rank0_only: bool) -> dict[str, Any]:
    # Where the device is a CPU, torch makes garbage of what it offloads to it.
    configs = (
        FullStateDictConfig(offload_to_cpu=False, rank0_only=rank0_only),
        FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=rank0_only),
    )
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        state: dict[str, Any] = FSDP.optim_state_dict(model, optimizer)
    return state


def states(case: str, rank0_only: bool) -> dict[str, Any]:
    """Return the whole state of the same training, as FSDP1 gives it and as we do."""
    old = _trained(fsdp1(case))
    new = _trained(prepared(case))
    return {
        "FSDP1": _fsdp1_state(*old, rank0_only=rank0_only),
        "ours": full_optimizer_state_dict(*new, rank0_only=rank0_only),
    }


def of_equal_moments() -> list[str]:
    """Return what is warned of: loading FSDP1's state of a CPU by either function, and loading ours."""
    old, old_optimizer = _trained(fsdp1("blocks"))
    corrupt = FSDP.full_optim_state_dict(old, old_optimizer, rank0_only=False)
    model, optimizer = _trained(prepared("blocks"))
    ours = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    whole = full_state_dict(model)
    if whole:
        whole["optimizer"] = {**ours, "state": corrupt["state"]}
    loads = (
        partial(optim_state_dict_to_load, model, optimizer, {**ours, "state": corrupt["state"]}),
        partial(load_full_state_dict, model, whole, optimizer),
        partial(optim_state_dict_to_load, model, optimizer, ours),
    )
    return [_warned_of(each) for each in loads]


def _warned_of(load: Callable[[], object]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load()
    return " ".join(str(each.message) for each in caught if "FM" in str(each.message))


def _go_on(model: Any, optimizer: torch.optim.Optimizer) -> Tensors:
    optimizer.zero_grad()
    backward(model, 7)
    optimizer.step()
    return whole_of(model)


def load(case: str, how: str) -> dict[str, Any]:
    """Load FSDP1's whole state into a new optimizer of each kind, and make a step."""
    old, old_optimizer = _trained(fsdp1(case))
    state = _fsdp1_state(old, old_optimizer, rank0_only=False)
    fresh = optimizer_of(old, lr=9.0)
    kept = copy.deepcopy(state)  # the optimizer's steps change tensors that FSDP1's functions hand through
    if how == "scatter":
        given = kept if dist.get_rank() == 0 else None
        fresh.load_state_dict(FSDP.scatter_full_optim_state_dict(given, old, optim=fresh))
    else:
        fresh.load_state_dict(FSDP.optim_state_dict_to_load(old, fresh, kept))
    expected = _go_on(old, fresh)

    model, optimizer = _trained(prepared(case))
    new = optimizer_of(model, lr=9.0)
    if how == "sharded":
        state = sharded_state_dict(model, optimizer)["optimizer"]
    given = state if how != "scatter" or dist.get_rank() == 0 else None
    new.load_state_dict(optim_state_dict_to_load(model, new, given, from_rank0=how == "scatter"))
    before = copy.deepcopy(state)
    after = _go_on(model, new)
    return {
        "FSDP1": expected,
        "ours": after,
        "untouched": all(map(torch.equal, _flat(before), _flat(state))),
        "lr": [[group["lr"] for group in each.param_groups] for each in (fresh, new)],
    }


def of_files_of_ranks(folder: str) -> list[tuple[Tensors, Tensors]]:
    """Do what FM425 says where each rank saves a file; return the weights a step later, expected and ours."""
    rank = dist.get_rank()
    old, old_optimizer = _trained(fsdp1("blocks"))
    torch.save(old_optimizer.state_dict(), f"{folder}/old_{rank}.pt")
    model, optimizer = _trained(prepared("blocks"))
    whole = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    torch.save({"opt": whole}, f"{folder}/extra_{rank}.pt")
    Path(folder, "both").mkdir(exist_ok=True)
    both = {"model": sharded_state_dict(model)["model"], "optimizer": whole}
    torch.save(both, f"{folder}/both/rank{rank}.pt")
    # The old script, once: it loads its files, and below that the whole is taken.
    fresh_old = optimizer_of(old, lr=9.0)
    fresh_old.load_state_dict(torch.load(f"{folder}/old_{rank}.pt", weights_only=False))
    brought = full_optimizer_state_dict(old, fresh_old)
    if rank == 0:
        torch.save(brought, f"{folder}/whole.pt")
    dist.barrier()

    def resumed(state: dict[str, Any]) -> Tensors:
        again, _ = _trained(prepared("blocks"))
        fresh = optimizer_of(again, lr=9.0)
        fresh.load_state_dict(optim_state_dict_to_load(again, fresh, state))
        return _go_on(again, fresh)

    from_new = resumed(torch.load(f"{folder}/extra_{rank}.pt", weights_only=False)["opt"])
    from_old = resumed(torch.load(f"{folder}/whole.pt", weights_only=False))
    joined = prepared("blocks")
    fresh = optimizer_of(joined, lr=9.0)
    load_checkpoint(f"{folder}/both", joined, fresh)
    from_both = _go_on(joined, fresh)
    expected = _go_on(model, optimizer)
    return [(expected, from_new), (_go_on(old, old_optimizer), from_old), (expected, from_both)]


def _flat(state: dict[str, Any]) -> list[torch.Tensor]:
    return [full(value) for own in state["state"].values() for value in own.values()]


def load_wrongly() -> list[tuple[str, str]]:
    """Return the errors for states that do not fit."""
    model, optimizer = _trained(prepared())
    whole = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    groups = whole["param_groups"]
    states = [
        {},
        {**whole, "param_groups": groups[:1]},
        {**whole, "state": {**whole["state"], "none.such": {}, "nor.this": {}}},
        {"state": {}, "param_groups": [{"params": [0, 1]}]},
    ]
    return [error_of(partial(optim_state_dict_to_load, model, optimizer, state)) for state in states]


def without_optimizer() -> bool:
    """Tell whether the parameters are numbered in the model's order where no optimizer is given."""
    model = prepared()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    backward(model, 0)
    optimizer.step()
    whole = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    loaded = optim_state_dict_to_load(model, None, whole)
    optimizer.load_state_dict(loaded)
    again = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    names = [name for name, _ in model.named_parameters()]
    same = all(torch.equal(again["state"][n]["exp_avg"], whole["state"][n]["exp_avg"]) for n in names)
    return same and loaded["param_groups"][0]["params"] == list(range(len(names)))


def groups_without_optimizer() -> bool:
    """Tell whether saved groups are kept where no optimizer is given, and what is frozen is left out."""
    model = prepared()
    first, *rest = model.parameters()
    first.requires_grad_(requires_grad=False)
    groups = [{"params": rest[1:], "lr": 0.01}, {"params": rest[:1], "lr": 0.02, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    backward(model, 0)
    optimizer.step()
    whole = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(optim_state_dict_to_load(model, None, whole))
    after = optimizer.state_dict()
    moments = [
        torch.equal(state["exp_avg"].to_local(), after["state"][number]["exp_avg"].to_local())
        for number, state in before["state"].items()
    ]
    return all(moments) and bool(moments) and before["param_groups"] == after["param_groups"]


class Wrapper:
    """What has an optimizer's groups and state, and is none of torch's: DeepSpeed's, Apex's and others."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state


def wrapped() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state of an optimizer, and of what wraps it."""
    model, optimizer = _trained(prepared())
    bare = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    wrapper: Any = Wrapper(optimizer)
    optimizer.load_state_dict(optim_state_dict_to_load(model, wrapper, bare))
    return bare, full_optimizer_state_dict(model, wrapper, rank0_only=False)


def in_the_place_of_the_world() -> list[list[bool]]:
    """Tell who has the state, with the groups of all, then with the model's group as the world.

    Model parallelism has groups of ranks that are apart, and FSDP1 gave a whole optimizer's state to rank 0
    of all. Scripts put the model's group there, so that each group's first rank got it.
    """
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = halves[dist.get_rank() % 2]
    old = _trained(fsdp1("blocks", process_group=group))
    new = _trained(prepared("blocks", process_group=group))
    found = []
    world = dist.GroupMember.WORLD
    for asked in (world, group):
        dist.GroupMember.WORLD = asked
        try:
            state = FSDP.full_optim_state_dict(*old)
            found.append([bool(state), bool(full_optimizer_state_dict(*new))])
        finally:
            dist.GroupMember.WORLD = world
    return found


def who_has_the_state() -> list[bool]:
    """Tell for FSDP1 and for ours whether this rank of 2 x 2 has the state of `rank0_only`."""
    return [bool(state) for state in states("HYBRID_SHARD", rank0_only=True).values()]
