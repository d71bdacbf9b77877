"""What torch's optimizers do with DTensors, and which of their options take none.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. Run on 2.7, 2.13 and 2.15, against FSDP1 on 2 ranks.
"""
# Whether an optimizer takes DTensors shows only at its step, in collectives.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import optim
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode


if TYPE_CHECKING:
    from collections.abc import Iterable

Behaviour = Literal["fails", "differs"]

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

OPTIONS_WITHOUT_DTENSORS: tuple[tuple[str, str], ...] = (
    ("SGD", "fused"),
    ("Adagrad", "fused"),
    ("Rprop", "foreach"),
)
"""Optimizers, and options of theirs whose kernels DTensor has no strategy for; 2.7 to 2.15."""


def behaviour_of(optimizer: optim.Optimizer) -> tuple[str, Behaviour] | None:
    """Return the class of torch's that an optimizer is of, and what it does to DTensors, if not FSDP1's."""
    table: dict[str, Behaviour] = {
        "Adafactor": "fails",
        "LBFGS": "fails",
        "Muon": "differs",
    }
    if _VERSION < (2, 15):
        table["Rprop"] = "fails"
    for name, behaviour in table.items():
        kind = getattr(optim, name, None)
        if kind is not None and isinstance(optimizer, kind):
            return name, behaviour
    return None


def refused_options(optimizer: optim.Optimizer) -> list[str]:
    """Return the options that an optimizer has switched on and that do not take DTensors."""
    return [
        option
        for name, option in OPTIONS_WITHOUT_DTENSORS
        if isinstance(optimizer, getattr(optim, name))
        and any(group.get(option) for group in optimizer.param_groups)
    ]


def switch_off(optimizer: optim.Optimizer, group: dict[str, Any], options: Iterable[str]) -> None:
    """Switch options of a group off; a scaler must not leave unscaling to an optimizer that is not fused."""
    off = {name: False for name in options if name in group}
    group.update(off)
    if off and not any(each.get("fused") for each in optimizer.param_groups):
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


_REFUSALS = (
    "does not have a sharding strategy registered",
    "got mixed torch.Tensor and DTensor",
    "in-place operations that require placement changes are not supported",  # since 2.13
)


TAKES_PARTS_FOR_WHOLE = _VERSION < (2, 13)
"""Whether in-place work on a norm of a DTensor silently takes a rank's part; later torch stops."""


def refuses_dtensors(error: BaseException) -> bool:
    """Tell whether an error is DTensor's word that it cannot do what it is asked, on any mesh."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _REFUSALS)


def as_dtensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor as a DTensor of a mesh of this rank alone, which has nobody to talk to."""
    # Without groups of its own: making one is a call of all ranks, and each rank tries for itself.
    mesh = DeviceMesh("cpu", [dist.get_rank()], _init_backend=False)
    # Up to torch 2.7 a reduction asks for the group's name, also where a mesh is one rank.
    if not hasattr(mesh, "_dim_group_infos"):
        mesh._dim_group_infos = [("", [dist.get_rank()], _ALONE)]  # type: ignore[attr-defined]
    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)


_ALONE = "this rank alone"


class WithoutCollectives(TorchDispatchMode):
    """Within it a collective is a RuntimeError: one that a single rank calls would wait for ever.

    Those of :func:`as_dtensor`'s mesh, which is one rank, give what they are given.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass on what stays on this rank."""
        if "c10d" in func.namespace:
            if _ALONE in args or func is torch.ops._c10d_functional.wait_tensor.default:
                return args[0].clone()
            msg = f"`{func}` asks other ranks, which do not take part here."
            raise RuntimeError(msg)
        if DTensor in types:
            return NotImplemented  # DTensor's own dispatch; what it calls comes here again
        return func(*args, **(kwargs or {}))
