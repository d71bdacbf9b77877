"""Full and sharded state dicts of FSDP2 models and their optimizers, by the names that FSDP1 used."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from fsdp_migrate.arguments import FLAG, check_arguments
from fsdp_migrate.errors import CheckpointMismatchError, OptimizerError
from fsdp_migrate.findings import listed
from fsdp_migrate.runtime.clean_names import clean_key, clean_parameter_name, with_clean_names
from fsdp_migrate.runtime.fsdp1_models import is_fsdp1, load_whole, whole_states
from fsdp_migrate.runtime.optimizer_loading import OptimizerOutline, load_optimizers, warn_of_equal_moments
from fsdp_migrate.runtime.sharded import (
    gather,
    is_first_rank,
    local_of,
    show_shards,
    without_wrapper,
    write_back,
)
from fsdp_migrate.sharding.optimizers import as_list
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat.tensor_kinds import is_made_of_tensors


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer


def full_state_dict(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    rank0_only: bool = True,
    offload_to_cpu: bool = True,
) -> dict[str, Any]:
    """Return the whole state of a sharded model, and of its optimizer, as plain tensors.

    What ``FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)`` and ``FSDP.optim_state_dict`` gave:
    ``{"model": {name: tensor}, "optimizer": {"state": {name: {...}}, "param_groups": [...]}}``, the optimizer
    keyed by parameter names. Tensors are gathered one after the other, so that beside the result there is one
    whole tensor at a time on a device, and none stays where it is not wanted. All ranks must call it.

    Changes nothing: torch's ``get_optimizer_state_dict`` makes a step where there is no state yet, and
    counts it; this does not. Tied parameters are gathered once and stay one tensor.

    Args:
        model: The model, between steps.
        optimizer: Its optimizer, or several, whose state becomes one.
        rank0_only: Build it on the first of the model's ranks only; the others return ``{}``. FSDP1 gave the
            model's to the first of each shard group: under HYBRID_SHARD one of each node, under NO_SHARD all.
        offload_to_cpu: Put the result on the CPU.

    Returns:
        The state. It shares no memory with the model.

    Raises:
        ModelStateError: A forward or backward is under way.
        OptimizerError: An optimizer holds parameters that are not the model's.

    Example:
        >>> from torch import nn
        >>> import torch.distributed as dist
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> state = full_state_dict(model, optimizer)
        >>> list(state["model"]), state["optimizer"]["param_groups"][0]["params"]
        (['weight', 'bias'], ['weight', 'bias'])
        >>> end_process_group()
    """
    check_arguments(FLAG, rank0_only=rank0_only, offload_to_cpu=offload_to_cpu)
    optimizers = as_list(optimizer)
    if is_fsdp1(model) and len(optimizers) < 2:
        given = optimizers[0] if optimizers else None
        return whole_states(model, given, rank0_only=rank0_only, offload_to_cpu=offload_to_cpu)
    show_shards(model, "full_state_dict")
    refuse_packed(optimizer)
    wanted = not rank0_only or is_first_rank(model.parameters())

    whole = functools.partial(whole_value, wanted=wanted, offload_to_cpu=offload_to_cpu)
    state = _state(model, optimizer, whole)
    return state if wanted else {}


def refuse_packed(optimizer: Optimizer | Iterable[Optimizer] | None) -> None:
    """Refuse to gather state that an optimizer keeps in few bits: its scales belong to each rank's rows.

    Raises:
        OptimizerError: There is such state. Nothing was communicated.
    """
    for each in as_list(optimizer):
        for state in each.state.values():
            for key, value in state.items():
                part = local_of(value) if isinstance(value, DTensor) else value
                if isinstance(part, torch.Tensor) and is_made_of_tensors(part):
                    msg = (
                        f"{type(each).__name__} keeps `{key}` packed ({type(part).__name__}), with scales "
                        "for blocks of each rank's rows: it has no whole form. Save the model whole, and the "
                        "optimizer by `sharded_state_dict` and `torch.distributed.checkpoint.save`."
                    )
                    raise OptimizerError(msg)


def whole_value(value: Any, *, wanted: bool, offload_to_cpu: bool) -> Any:
    """Return a tensor out of its shards, or a copy of what is none; None where it is not ``wanted``.

    All ranks gather, also those that want nothing.
    """
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value) if wanted else None
    gathered = gather(value)
    if not wanted:
        return None
    return gathered.cpu() if offload_to_cpu else gathered


def sharded_state_dict(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    cpu_offload: bool = False,
) -> dict[str, Any]:
    """Return the state of a sharded model, and of its optimizer, as torch's checkpoints (DCP) save it.

    What ``StateDictType.SHARDED_STATE_DICT`` gave: the structure of :func:`full_state_dict`, with DTensors
    that share the model's memory. No communication; nothing is changed.

    Args:
        model: The model, between steps.
        optimizer: Its optimizer, or several, whose state becomes one.
        cpu_offload: Whether each rank's part is copied to the CPU, as ``offload_to_cpu`` asked of FSDP1: then
            later steps do not change what was returned.

    Returns:
        The state, the same names on every rank.

    Raises:
        ModelStateError: A forward or backward is under way.
        OptimizerError: An optimizer holds parameters that are not the model's.

    Example:
        >>> from torch import nn
        >>> sorted(sharded_state_dict(nn.Linear(4, 2))["model"])
        ['bias', 'weight']
    """
    show_shards(model, "sharded_state_dict")
    return _state(model, optimizer, _on_cpu if cpu_offload else _without_wrapper)


def _on_cpu(value: Any) -> Any:
    value = _without_wrapper(value)
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _without_wrapper(value: Any) -> Any:
    # A checkpoint with wrappers is read by nobody who has not their package.
    return without_wrapper(value) if isinstance(value, torch.Tensor) else value


def load_full_state_dict(
    model: nn.Module,
    state: Mapping[str, Any],
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    strict: bool = True,
) -> None:
    """Load what :func:`full_state_dict` returned, or a full FSDP1 state of that structure.

    The first rank of all gives the state and sends it, tensor by tensor; each rank keeps its part. All ranks
    must call it.

    Changes: the values of the model, and the optimizer's state and settings, but for ``foreach`` and
    ``fused``. Gradients stay. A parameter that the state holds nothing of, because it was never stepped, has
    no optimizer state afterwards. Warns of an optimizer state that torch saved corrupt (FM217).

    Args:
        model: The sharded model, of any world size.
        state: The state on rank 0; ignored, and best ``{}``, on the others.
        optimizer: The optimizer, or several, whose state ``state["optimizer"]`` holds. None: not loaded.
        strict: Every name of the model must be there, and no other.

    Raises:
        CheckpointMismatchError: Rank 0's state lacks a part, or differs from the model in names, shapes or
            parameter groups; raised on every rank, before anything is loaded.
        ModelStateError: A forward or backward is under way.
        OptimizerError: An optimizer holds parameters that are not the model's.

    Example:
        >>> from torch import nn
        >>> import torch.distributed as dist
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = nn.Linear(4, 2)
        >>> load_full_state_dict(model, {"model": {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}})
        >>> model.weight.sum().item()
        8.0
        >>> end_process_group()
    """
    check_arguments(FLAG, strict=strict)
    show_shards(model, "load_full_state_dict")
    optimizers = as_list(optimizer)
    here = torch.distributed.get_rank() == 0
    sent: list[Any] = [_outline(state) if here else None]
    torch.distributed.broadcast_object_list(sent, src=0)
    _check_fits(model, optimizers, sent[0], strict=strict)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
    # torch takes the dicts that it is given apart.
    set_model_state_dict(model, with_clean_names(state["model"]) if here else {}, options=options)
    if optimizers:
        mine = with_clean_names(state["optimizer"]["state"]) if here else None
        warn_of_equal_moments(mine)
        load_optimizers(optimizers, _names(model), sent[0]["optimizer"], mine)


def load_model_state_dict(model: nn.Module, state_dict: Mapping[str, Any], *, strict: bool = True) -> Any:
    """Load a full state that every rank has, as an FSDP1 model's ``load_state_dict`` did; no communication.

    Names and shapes are compared by the modules themselves, with their hooks and errors. torch's
    ``set_model_state_dict`` with ``full_state_dict=True`` fills in from the model what the state lacks, so
    that a missing name is no error, and puts DTensors into the dict that it is given (2.6 to 2.15). Names
    are taken with and without `_orig_mod.`, which FSDP1's states of compiled models have. A sharded model's
    own ``load_state_dict`` is not called: FSDP1's wrapper had torch's, and passed over it.

    Changes: the values of the model. Leaves ``state_dict`` alone. DTensors in it are taken as they are.

    Args:
        model: The sharded model, or one that is not sharded (yet).
        state_dict: The whole tensors by their names, the same on every rank.
        strict: Every name of the model must be there, and no other.

    Returns:
        What ``torch.nn.Module.load_state_dict`` returns: ``missing_keys`` and ``unexpected_keys``.

    Raises:
        ModelStateError: A forward or backward is under way.
        RuntimeError: A name is missing or is not the model's, or a shape is another (torch's own error).

    Example:
        >>> from torch import nn
        >>> load_model_state_dict(nn.Linear(4, 2), {"weight": torch.ones(2, 4)}, strict=False).missing_keys
        ['bias']
    """
    check_arguments(FLAG, strict=strict)
    if is_fsdp1(model):
        return load_whole(model, state_dict, strict=strict)
    show_shards(model, "load_model_state_dict")
    own = model.state_dict()
    with _past_its_own_method(model):
        if not own or not state_dict:
            return model.load_state_dict(state_dict, strict=strict)  # torch's function would do nothing
        whole = with_clean_names(state_dict)
        if any(isinstance(value, torch.Tensor) and value.is_meta for value in own.values()):
            return _load_into_meta(model, own, whole, strict=strict)
        with _WholeIntoShards():
            return set_model_state_dict(model, whole, options=StateDictOptions(strict=strict))


@contextlib.contextmanager
def _past_its_own_method(model: nn.Module) -> Iterator[None]:
    """Have a sharded model load by torch's method, as FSDP1's wrapper did, and not by its class's own."""
    is_wrapper = isinstance(model, FSDPModule) and "load_state_dict" not in vars(model)
    if not is_wrapper or type(model).load_state_dict is nn.Module.load_state_dict:
        yield
        return
    vars(model)["load_state_dict"] = functools.partial(nn.Module.load_state_dict, model)
    try:
        yield
    finally:
        del vars(model)["load_state_dict"]


class _WholeIntoShards(TorchFunctionMode):
    """Lets ``param.copy_(whole)`` write this rank's part, where modules load and their hooks rename."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and isinstance(args[0], DTensor) and not isinstance(args[1], DTensor):
            write_back(args[0], args[1])
            return args[0]
        return func(*args, **(kwargs or {}))


def _load_into_meta(
    model: nn.Module, own: Mapping[str, Any], state_dict: dict[str, Any], *, strict: bool
) -> Any:
    """Load into parameters without memory, which torch's function for full states alone gives some."""
    missing = [name for name in map(clean_parameter_name, own) if name not in state_dict]
    if strict and missing:
        shown = ", ".join(f"`{name}`" for name in missing)
        msg = (
            f"Missing key(s) in state_dict: {shown}. The model's parameters have no memory yet (meta device)."
        )
        raise RuntimeError(msg)
    options = StateDictOptions(full_state_dict=True, strict=strict)
    found = set_model_state_dict(model, state_dict, options=options)
    return found._replace(missing_keys=missing)


def _outline(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be wrong with a state, without its values; an error, too, is for all ranks to know."""
    try:
        return {
            "parts": sorted(state),
            "shapes": {clean_key(name): _shape(value) for name, value in state.get("model", {}).items()},
            "optimizer": OptimizerOutline.of(state.get("optimizer", {})),
        }
    except (AttributeError, KeyError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _check_fits(
    model: nn.Module, optimizers: list[Optimizer], outline: Mapping[str, Any], *, strict: bool
) -> None:
    """Compare what rank 0 sends with what is here, on every rank alike: torch would hang on a difference."""
    if "error" in outline:
        msg = (
            "The state of rank 0 has another structure than `full_state_dict` gives it, "
            f'`{{"model": {{name: tensor}}, "optimizer": {{...}}}}` ({outline["error"]}). Nothing was loaded.'
        )
        raise CheckpointMismatchError(msg)
    needed = ["model", "optimizer"] if optimizers else ["model"]
    problems = [f"it has no part `{part}`" for part in needed if part not in outline["parts"]]
    found, expected = (
        outline["shapes"],
        {k: _shape(v) for k, v in get_model_state_dict(model).items()},
    )
    if strict and "model" in outline["parts"]:
        problems += [f"`{name}` is missing" for name in expected if name not in found]
        problems += [f"`{name}` is not in the model" for name in found if name not in expected]
    problems += [
        f"`{name}` has the shape {found[name]}; expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    names = _names(model)
    check_owners(optimizers, names)
    if "optimizer" in outline["parts"] and optimizers:
        problems += _misfits(optimizers, names, outline["optimizer"])
    if problems:
        shown = listed(problems, 8, between="; ")
        msg = f"The state of rank 0 does not fit: {shown}. Nothing was loaded."
        raise CheckpointMismatchError(msg)


def _misfits(
    optimizers: list[Optimizer], names: Mapping[nn.Parameter, tuple[str, ...]], outline: OptimizerOutline
) -> list[str]:
    """Say what of a state is not of these optimizers: groups of other parameters, states of none."""
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    here = [sorted(names[param][0] for param in group) for group in groups]
    sent = [sorted(group) for group in outline.params]
    problems = []
    if sent != here:
        problems.append(_group_misfit(sent, here))
    own = {name for group in groups for param in group for name in names[param]}
    problems += [
        f"`{name}` has a state, and is not in the optimizer" for name in outline.state if name not in own
    ]
    return problems


def _group_misfit(sent: list[list[Any]], here: list[list[str]]) -> str:
    """Say in what the groups of a state are not those of the optimizer."""
    if any(not isinstance(name, str) for group in sent for name in group):
        return (
            "its parameters are numbered, as `optimizer.state_dict()` numbers them; expected names, as "
            "`FSDP.optim_state_dict` gives and `fsdp-migrate convert --model` puts in the place of numbers"
        )
    sizes = [[len(group) for group in each] for each in (sent, here)]
    if sizes[0] != sizes[1]:
        return f"its parameter groups, of {sizes[0]} parameters, are not the optimizer's, of {sizes[1]}"
    theirs, ours = ({name for group in each for name in group} for each in (sent, here))
    if theirs == ours:
        return "its parameter groups hold the same parameters divided in another way"
    first = [f"`{name}`" for name in (*sorted(theirs - ours)[:3], *sorted(ours - theirs)[:3])]
    return f"its parameter groups hold other parameters than the optimizer's: {', '.join(first)}, ..."


def _names(model: nn.Module) -> dict[nn.Parameter, tuple[str, ...]]:
    """Return every parameter with its names, as state dicts have them."""
    return {param: tuple(map(clean_parameter_name, every)) for param, every in parameter_names(model).items()}


def _state(
    model: nn.Module, optimizer: Optimizer | Iterable[Optimizer] | None, value_of: Callable[[Any], Any]
) -> dict[str, Any]:
    optimizers = as_list(optimizer)
    names = _names(model)
    check_owners(optimizers, names)
    state: dict[str, Any] = {"model": {}}
    for name, first, value in saved_values(model):
        # Under the first of its names a tied parameter comes first.
        known = state["model"]
        known[name] = known[first] if first in known else value_of(value)
    if optimizers:
        state["optimizer"] = _optimizer_state(optimizers, names, value_of)
    return state


def saved_values(model: nn.Module) -> list[tuple[str, str, Any]]:
    """Return what a state dict of the model holds: each name, the first of a tie's names, and the value."""
    first = {name: every[0] for every in _names(model).values() for name in every}
    # torch's function refuses a model without anything to save.
    saved = get_model_state_dict(model) if model.state_dict() else {}
    return [(name, first.get(name, name), value) for name, value in saved.items()]


def check_owners(optimizers: Sequence[Optimizer], names: Mapping[nn.Parameter, tuple[str, ...]]) -> None:
    """Check, on every rank and before the first collective call, that every parameter has a name.

    Raises:
        OptimizerError: An optimizer holds parameters that are not the model's.
    """
    for position, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            strangers = sum(param not in names for param in group["params"])
            if strangers:
                msg = (
                    f"Optimizer {position} ({type(optimizer).__name__}) has {strangers} parameters in group "
                    f"{index} that are not the model's. Build it from the sharded model, or pass it to "
                    "prepare_fully_shard in `optimizers`."
                )
                raise OptimizerError(msg)


def _optimizer_state(
    optimizers: list[Optimizer],
    names: Mapping[nn.Parameter, tuple[str, ...]],
    value_of: Callable[[Any], Any],
) -> dict[str, Any]:
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param in optimizer.state:
                    own = optimizer.state[param]
                    state[names[param][0]] = {key: value_of(value) for key, value in own.items()}
            settings = {key: value_of(value) for key, value in group.items() if key != "params"}
            groups.append({**settings, "params": [names[param][0] for param in group["params"]]})
    return {"state": state, "param_groups": groups}
