"""Whole optimizer states by parameter names, out of a sharded run and into one.

What ``FSDP.optim_state_dict`` and its kin did, for models that FSDP2 has sharded. With the model's state in
one call see :mod:`fsdp_migrate.runtime.state_dicts`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fsdp_migrate.arguments import FLAG, check_arguments
from fsdp_migrate.errors import CheckpointMismatchError, OptimizerError
from fsdp_migrate.findings import named
from fsdp_migrate.runtime.clean_names import clean_parameter_name, with_clean_names
from fsdp_migrate.runtime.fsdp1_models import is_fsdp1, optimizer_state_to_load, whole_states
from fsdp_migrate.runtime.optimizer_loading import OptimizerOutline, receive_value, warn_of_equal_moments
from fsdp_migrate.runtime.sharded import is_first_rank, shard_like, show_shards
from fsdp_migrate.runtime.state_dicts import refuse_packed, sharded_state_dict, whole_value
from fsdp_migrate.sharding.optimizers import as_list
from fsdp_migrate.sharding.tying import parameter_names


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.optim import Optimizer


def full_optimizer_state_dict(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    rank0_only: bool = True,
    offload_to_cpu: bool = True,
) -> dict[str, Any]:
    """Return the whole state of a sharded model's optimizer, keyed by parameter names.

    What ``FSDP.optim_state_dict`` gave under ``FULL_STATE_DICT``, and ``FSDP.full_optim_state_dict``:
    ``{"state": {name: {...}}, "param_groups": [...]}``. Tensors are gathered one after the other. All ranks
    must call it. Changes nothing: torch's ``get_optimizer_state_dict`` makes a step where there is no state.

    Args:
        model: The sharded model, between steps.
        optimizer: Its optimizer, or several, whose state becomes one.
        rank0_only: Build it on the first of the model's ranks only; the others return ``{}``. FSDP1 asked for
            rank 0 of the group that it was given, which was all ranks where none was given.
        offload_to_cpu: Put the tensors on the CPU.

    Raises:
        ModelStateError: A forward or backward is under way.
        OptimizerError: An optimizer holds parameters that are not the model's.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> full_optimizer_state_dict(model, optimizer, rank0_only=False)["param_groups"][0]["params"]
        ['weight', 'bias']
    """
    check_arguments(FLAG, rank0_only=rank0_only, offload_to_cpu=offload_to_cpu)
    if optimizer is None:
        raise OptimizerError("`optimizer` is None; expected the model's optimizer, or several.")
    optimizers = as_list(optimizer)
    if is_fsdp1(model) and len(optimizers) == 1:
        how = {"rank0_only": rank0_only, "offload_to_cpu": offload_to_cpu}
        return dict(whole_states(model, optimizers[0], **how).get("optimizer", {}))
    refuse_packed(optimizer)
    state = sharded_state_dict(model, optimizer)["optimizer"]
    wanted = not rank0_only or is_first_rank(model.parameters())

    whole = functools.partial(whole_value, wanted=wanted, offload_to_cpu=offload_to_cpu)

    states = {name: {key: whole(value) for key, value in own.items()} for name, own in state["state"].items()}
    groups = [{key: whole(value) for key, value in group.items()} for group in state["param_groups"]]
    return {"state": states, "param_groups": groups} if wanted else {}


def optim_state_dict_to_load(
    model: nn.Module,
    optimizer: Optimizer | None,
    state: Mapping[str, Any] | None,
    *,
    from_rank0: bool = False,
) -> dict[str, Any]:
    """Return a state keyed by names in the form that ``optimizer.load_state_dict`` takes.

    What ``FSDP.optim_state_dict_to_load`` did, and ``FSDP.scatter_full_optim_state_dict`` by ``from_rank0``:
    whole tensors become this rank's shards, sharded ones (DTensors) stay, names become numbers. With
    ``from_rank0`` all ranks must call it; otherwise it communicates nothing. Changes nothing. Warns of a
    state that torch saved corrupt (FM217), and takes it as it is.

    Args:
        model: The sharded model, between steps.
        optimizer: Its optimizer, whose groups number the parameters. None: the saved groups do, each in the
            order of ``model.parameters()``, as FSDP1 did it.
        state: ``{"state": {name: {...}}, "param_groups": [...]}``, the same on every rank, or sharded.
        from_rank0: Only rank 0 gives the state; it sends the tensors one by one.

    Raises:
        CheckpointMismatchError: The state has no parameter groups, none for a parameter, or a state for
            something that the optimizer does not have.
        ModelStateError: A forward or backward is under way.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = {"state": {}, "param_groups": [{"lr": 0.5, "params": ["weight", "bias"]}]}
        >>> loaded = optim_state_dict_to_load(model, optimizer, state)
        >>> loaded["param_groups"][0]["lr"], loaded["param_groups"][0]["params"]
        (0.5, [0, 1])
    """
    has_state = not from_rank0 or dist.get_rank() == 0
    warn_of_equal_moments(state.get("state") if has_state and isinstance(state, Mapping) else None)
    if is_fsdp1(model) and optimizer is not None:
        return optimizer_state_to_load(model, optimizer, state or {}, from_rank0=from_rank0)
    show_shards(model, "optim_state_dict_to_load")
    names = {
        param: tuple(map(clean_parameter_name, every)) for param, every in parameter_names(model).items()
    }
    outline = _outline_of(state, from_rank0=from_rank0)
    here = with_clean_names((state or {}).get("state", {})) if has_state else None
    groups = _groups(optimizer) if optimizer is not None else _saved_groups(outline, names)
    own = [name for group in groups for param in group["params"] for name in names.get(param, ())]
    _refuse_strangers(outline, own)
    loaded: dict[str, Any] = {"state": {}, "param_groups": []}
    number = 0
    for index, group in enumerate(groups):
        settings = _of_empty(outline, index, len(groups)) if not group["params"] else {}
        first = number
        for param in group["params"]:
            name, settings_here = _find(names.get(param, ()), outline)
            settings = settings or settings_here
            if name in outline.state:
                sent = None if here is None else here[name]
                loaded["state"][number] = {
                    key: receive_value(value, param, None if sent is None else sent[key])
                    if from_rank0
                    else _shard(here[name][key] if here else value, param)
                    for key, value in outline.state[name].items()
                }
            number += 1
        # How an optimizer steps (`foreach`, `fused`) is its own affair, and not in the outline.
        own_settings = {key: value for key, value in group.items() if key != "params"}
        loaded["param_groups"].append({**own_settings, **settings, "params": list(range(first, number))})
    return loaded


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the groups of an optimizer, or of what wraps one; its own state is not asked for here."""
    own = getattr(optimizer, "param_groups", None)
    return own if own is not None else [group for each in as_list(optimizer) for group in each.param_groups]


def _saved_groups(
    outline: OptimizerOutline, names: Mapping[nn.Parameter, tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Return the groups that a state has. What is in none of them, as what is frozen, no optimizer has."""
    return [
        {"params": [param for param, own in names.items() if not saved.isdisjoint(own)]}
        for saved in map(frozenset, outline.params)
    ]


def _outline_of(state: Mapping[str, Any] | None, *, from_rank0: bool) -> OptimizerOutline:
    """Return the state's names and settings, as rank 0 has them if it sends the state."""
    # What is wrong with rank 0's is for all ranks to know: they wait for it.
    outline: list[OptimizerOutline | str]
    try:
        outline = [OptimizerOutline.of({} if state is None else state)]
    except (AttributeError, KeyError, TypeError) as error:
        outline = [f"{type(error).__name__}: {error}"]
    if from_rank0:
        dist.broadcast_object_list(outline, src=0)
    found = outline[0]
    if isinstance(found, str):
        msg = (
            "The optimizer's state has another structure than `full_optimizer_state_dict` gives it, "
            f'`{{"state": {{name: {{...}}}}, "param_groups": [...]}}` ({found}).'
        )
        raise CheckpointMismatchError(msg)
    if not found.params:
        msg = "The optimizer's state has no `param_groups`; expected a state keyed by parameter names."
        raise CheckpointMismatchError(msg)
    return found


def _find(names: tuple[str, ...], outline: OptimizerOutline) -> tuple[str, Mapping[str, Any]]:
    """Return the name that the state has for a parameter, and the settings of its group."""
    for params, settings in zip(outline.params, outline.settings, strict=True):
        for name in names:
            if name in params:
                return name, settings
    expected = f"`{names[0]}`" if names else "a parameter that is not the model's"
    msg = f"The optimizer's state has no group for {expected}. Is it of the same model?"
    raise CheckpointMismatchError(msg)


def _of_empty(outline: OptimizerOutline, index: int, num_groups: int) -> Mapping[str, Any]:
    """Return what the state says of a group without parameters, which its place alone tells."""
    is_known = len(outline.params) == num_groups and not outline.params[index]
    return outline.settings[index] if is_known else {}


def _refuse_strangers(outline: OptimizerOutline, own: list[str]) -> None:
    strangers = sorted(set(outline.state) - set(own))
    if strangers:
        msg = (
            f"The optimizer's state has {named(strangers, 1)}, which the optimizer does not hold. "
            "Is it of the same model, and keyed by names?"
        )
        raise CheckpointMismatchError(msg)


def _shard(value: Any, param: torch.Tensor) -> Any:
    """Return this rank's part of what has the parameter's shape, and a copy of anything else.

    An optimizer keeps the tensors that it loads, and its steps would change the state.
    """
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if isinstance(value, DTensor) or not isinstance(param, DTensor) or value.shape != param.shape:
        return value.detach().clone()
    return cast("DTensor", shard_like(value, param).clone())
