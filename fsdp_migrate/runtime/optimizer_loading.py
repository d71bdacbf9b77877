"""A whole optimizer state, which rank 0 has, into optimizers of sharded parameters: tensor by tensor.

torch's ``set_optimizer_state_dict`` makes a step first, to have something to load into. It fails where
gradients are there already, and hangs where a parameter has no state because it was never used.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from fsdp_migrate.checkpoint_convert.manifest.classify import MOMENTS
from fsdp_migrate.findings import counted
from fsdp_migrate.runtime.clean_names import clean_key
from fsdp_migrate.runtime.sharded import write_back


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.optim import Optimizer


_PAIRS = tuple((first, second) for first, others in MOMENTS.items() for second in others)
_EQUAL = (
    "FM217: `{}` and `{}` are the same in the optimizer state that is loaded, of {}, such as `{}`: torch "
    "saved it corrupt, as it does a full optimizer state on CPU with offload_to_cpu=True, its default. It is "
    "loaded as it is, as FSDP1 loaded it, and training goes on wrong from the first step. Save it again from "
    "the run with offload_to_cpu=False, or leave the optimizer out and warm up again. `fsdp-migrate explain "
    "FM217` says more."
)
_HOW = ("params", "param_names", "foreach", "fused")
"""Settings that are the new optimizer's own: whose they are, and by which kernels they are stepped."""


def warn_of_equal_moments(states: Any) -> None:
    """Warn of a full state in which both moments of a parameter are the same, as torch saves it on the CPU.

    Healthy ones differ in their first elements, where comparing stops.

    Args:
        states: The state by parameter, as it was saved; None on a rank that has none. What is no such state
            is passed over: whoever loads it says so.

    Example:
        >>> warn_of_equal_moments({"weight": {"exp_avg": torch.ones(2), "exp_avg_sq": torch.zeros(2)}})
    """
    known = states.items() if isinstance(states, Mapping) else ()
    found = ((name, own, pair) for name, own in known if isinstance(own, Mapping) for pair in _PAIRS)
    same = [(name, pair) for name, own, pair in found if _are_same(*(own.get(each) for each in pair))]
    if same:
        name, (first, second) = same[0]
        parameters = counted(len({each for each, _ in same}), "parameter")
        warnings.warn(_EQUAL.format(first, second, parameters, name), stacklevel=3)


def _are_same(one: Any, other: Any) -> bool:
    """Tell whether two moments are the same, and tell something: zeros do not, nor one value beside them."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    one, other = (each.to_local() if isinstance(each, DTensor) else each for each in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype or one.is_meta or not torch.equal(one, other):
        return False
    values = one[one != 0]
    return bool(values.numel()) and bool((values != values[0]).any())


@dataclass(frozen=True)
class SentTensor:
    """What the other ranks need to know of a tensor before rank 0 sends it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class OptimizerOutline:
    """An optimizer state without its large tensors: state by parameter name, names and settings by group."""

    state: Mapping[str, Mapping[str, Any]]
    params: tuple[tuple[str, ...], ...]
    settings: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, part: Mapping[str, Any]) -> OptimizerOutline:
        """Return the outline of a state that is keyed by parameter names."""
        groups = part.get("param_groups", [])
        return cls(
            {
                clean_key(name): {key: _outline(value) for key, value in own.items()}
                for name, own in part.get("state", {}).items()
            },
            tuple(tuple(map(clean_key, group["params"])) for group in groups),
            tuple({key: value for key, value in group.items() if key not in _HOW} for group in groups),
        )


def _outline(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return SentTensor(tuple(value.shape), value.dtype) if value.ndim else value.detach().cpu().clone()
    return copy.deepcopy(value)


def load_optimizers(
    optimizers: Iterable[Optimizer],
    names: Mapping[nn.Parameter, tuple[str, ...]],
    outline: OptimizerOutline,
    state: Mapping[str, Mapping[str, Any]] | None,
) -> None:
    """Give every optimizer its part of the state; a collective call of all ranks.

    What the state holds nothing of has no state afterwards, as where it was saved.

    Args:
        optimizers: The optimizers, whose groups are those of the outline, one optimizer after the other.
        names: The parameters with their names.
        outline: What is sent; the same on every rank.
        state: The state itself, by name, on rank 0; None on the others.
    """
    settings = iter(outline.settings)
    for optimizer in optimizers:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        loaded: dict[int, dict[str, Any]] = {}
        for index, param in enumerate(params):
            name = next((each for each in names[param] if each in outline.state), None)
            if name is not None:
                own = None if state is None else state[name]
                loaded[index] = {
                    key: receive_value(value, param, None if own is None else own[key])
                    for key, value in outline.state[name].items()
                }
        # Its own groups first: whose parameters they are, and by which kernels they are stepped, is not in
        # the outline.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(
            {"state": loaded, "param_groups": [{**group, **next(settings)} for group in groups]}
        )


def receive_value(value: Any, param: torch.Tensor, sent: torch.Tensor | None) -> Any:
    """Return a value as this rank needs it: what has the parameter's shape is sharded as it is."""
    if not isinstance(value, SentTensor):
        return value
    device = torch.device(param.device_mesh.device_type) if isinstance(param, DTensor) else param.device
    whole = torch.empty(value.shape, dtype=value.dtype, device=device)
    if sent is not None:
        whole.copy_(sent)
    dist.broadcast(whole, src=0)
    if not isinstance(param, DTensor):
        return whole
    if value.shape != tuple(param.shape):  # such as Adafactor's sums of rows and columns
        replicated = [Replicate()] * param.device_mesh.ndim
        return DTensor.from_local(whole, param.device_mesh, replicated, run_check=False)
    # This rank's part, and the whole is dropped before the next one comes: one whole tensor at a time.
    mine = torch.empty_like(param.detach(), dtype=value.dtype)
    write_back(mine, whole)
    return mine
