"""Faults that are put into migrated Trainers on purpose, each as a callback of Composer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.adapters.composer_trainer import sharding
from fsdp_migrate.config import MixedPrecision
from fsdp_migrate.torch_compat import device_meshes


if TYPE_CHECKING:
    from collections.abc import Callable


def make_fault(kind: str) -> Any:
    """Return a callback that puts a fault in."""
    from composer import Callback

    class Fault(Callback):  # type: ignore[misc,unused-ignore]
        def init(self, state: Any, logger: Any) -> None:
            del logger
            self.undo = _AT_INIT[kind](state) if kind in _AT_INIT else None

        def fit_start(self, state: Any, logger: Any) -> None:
            del logger
            if kind in _AT_START:
                _AT_START[kind](state)

        def after_forward(self, state: Any, logger: Any) -> None:
            del logger
            if kind == "outputs":
                state.outputs = state.outputs * 1
            if kind == "batch with a graph":
                state.batch.logits = state.outputs * 1

        def close(self, state: Any, logger: Any) -> None:
            del state, logger
            if self.undo is not None:
                self.undo()

    return Fault()


def _reduce_low(state: Any) -> Callable[[], None]:
    """Shard as if gradients were to be reduced in bfloat16."""
    del state
    return _plan_otherwise(lambda child, config: _in_other_types(config, reduce_dtype="bf16"))


def _keep_buffers(state: Any) -> Callable[[], None]:
    """Shard as if buffers were not to be cast."""
    del state
    return _plan_otherwise(lambda child, config: _in_other_types(config, buffer_dtype=None))


def _make_other_units(state: Any) -> Callable[[], None]:
    """Shard as if the head were to be the one unit below the root."""
    del state
    return _plan_otherwise(
        lambda child, config: config.updated(auto_wrap_policy={type(child.get_submodule("head"))})
    )


def _in_other_types(config: Any, **types: str | None) -> Any:
    precision = MixedPrecision(**{**config.mixed_precision.model_dump(), **types})
    return config.updated(mixed_precision=precision)


def _plan_otherwise(change: Callable[[nn.Module, Any], Any]) -> Callable[[], None]:
    original = vars(sharding)["plan_fully_shard"]

    def plan(child: nn.Module, config: Any, **options: Any) -> Any:
        return original(child, change(child, config), **options)

    return _put(sharding, "plan_fully_shard", plan)


def _no_memory(state: Any) -> Callable[[], None]:
    """Let the last rank's machine have no memory left."""
    del state
    from fsdp_migrate.adapters.composer_trainer import twins

    return _put(twins, "free_on_host", lambda: 1000 if dist.get_rank() else 10**12)


def _put(module: Any, name: str, value: Any) -> Callable[[], None]:
    names = vars(module)
    original = names[name]
    names[name] = value
    return lambda: names.update({name: original})


def _divide_otherwise(state: Any) -> None:
    units = [each for each in state.model.modules() if isinstance(each, FSDPModule)]
    device_meshes.set_gradient_divisor(units, state.device_mesh, 1)


def _double_later(state: Any) -> None:
    """Double all gradients of the second batch."""

    def double(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        del module, args
        if out.requires_grad and int(state.timestamp.batch) == 1:
            out.register_hook(lambda grad: grad * 2)

    state.model.net.register_forward_hook(double)  # the twin was copied before


def _leave_out(state: Any) -> None:
    (group,) = state.optimizers[0].param_groups
    group["params"] = [each for each in group["params"] if each is not state.model.net.head.out.bias]


def _compile(state: Any) -> None:
    """Put something in the place of the model's forward, as Composer does that compiles it."""
    state.model.forward = state.model.forward


def _replace(state: Any) -> None:
    """Replace a module when the model is sharded, as GyroDropout does."""
    state.model.drop = nn.Dropout(0.6)


def _drift(state: Any) -> None:
    """Add to a gradient what no seed decides, as kernels do that add up in any order."""
    own = torch.Generator()
    own.seed()

    def drift(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        del module, args
        if out.requires_grad:
            out.register_hook(lambda grad: grad * (1 + 1e-6 * torch.rand(grad.shape, generator=own)))

    # The twin's model is a copy of this one, hooks and all.
    state.model.net.head.register_forward_hook(drift)


_AT_INIT: dict[str, Callable[[Any], Any]] = {
    "reduce dtype": _reduce_low,
    "buffers": _keep_buffers,
    "units": _make_other_units,
    "no memory": _no_memory,
    "drift": _drift,
}
_AT_START: dict[str, Callable[[Any], Any]] = {
    "divisor": _divide_otherwise,
    "second batch": _double_later,
    "left out": _leave_out,
    "compiled": _compile,
    "replaced": _replace,
}
