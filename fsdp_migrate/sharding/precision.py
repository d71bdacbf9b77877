"""What FSDP1's mixed precision did and FSDP2's has no option for: buffers, and modules kept in float32."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fsdp_migrate.sharding.resolve import resolve_dtype
from fsdp_migrate.torch_compat import tensor_kinds
from fsdp_migrate.torch_compat.unit_state import is_root


if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from fsdp_migrate.sharding.plan import ShardPlan


_input_dtypes: WeakKeyDictionary[nn.Module, torch.dtype] = WeakKeyDictionary()


def apply_full_precision_casts(model: nn.Module, plan: ShardPlan) -> None:
    """Cast the inputs of the plan's full-precision modules to float32, and their outputs back.

    FSDP1 does the same for the classes that its mixed precision ignores
    (``_common_utils._override_module_mixed_precision``): positional inputs only, and outputs to the dtype
    that the last floating-point input had.
    """
    for fqn in plan.full_precision:
        module = model.get_submodule(fqn)
        module.register_forward_pre_hook(_cast_inputs)
        module.register_forward_hook(_cast_outputs)


def apply_root_casts(model: nn.Module, plan: ShardPlan) -> None:
    """Cast the inputs of units that are called by themselves, as FSDP1 casts those of the root.

    Where methods of the model call units, and nothing the model, each unit is the root of its own.
    """
    for unit in plan.units:
        dtype = resolve_dtype(unit.mp_policy.param_dtype)
        casts_as_root = unit.config.root_mp_policy.cast_forward_inputs and not unit.full_precision
        if unit.is_root or dtype is None or unit.mp_policy.cast_forward_inputs or not casts_as_root:
            continue
        for fqn in (*unit.grouped, unit.fqn):
            _RootCasts(dtype).watch(model.get_submodule(fqn))


class _RootCasts:
    """Casts one unit's inputs if its first forward shows that it is a root; else it goes away."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._handle: RemovableHandle | None = None

    def watch(self, module: nn.Module) -> None:
        # After FSDP2's own, by whose first call of all it is known which unit is the root.
        hook = torch.compiler.disable(self._cast)
        self._handle = module.register_forward_pre_hook(hook, with_kwargs=True)

    def _cast(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_root(module):
            cast = partial(_cast_floating, self._dtype)
            return tensor_kinds.map_leaves(cast, args), tensor_kinds.map_leaves(cast, kwargs)
        if self._handle is not None:
            self._handle.remove()
        return None


def _cast_inputs(module: nn.Module, args: tuple[Any, ...]) -> Any:
    def cast(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype == torch.float32:
            return value
        _input_dtypes[module] = value.dtype
        return value.to(torch.float32)

    return tensor_kinds.map_leaves(cast, args)


def _cast_outputs(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    del args
    dtype = _input_dtypes.get(module)
    return output if dtype is None else tensor_kinds.map_leaves(partial(_cast_floating, dtype), output)


def _cast_floating(dtype: torch.dtype, value: Any) -> Any:
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_floating else value


def apply_buffer_dtype(model: nn.Module, plan: ShardPlan) -> None:
    """Cast floating-point buffers to their unit's ``buffer_dtype``; state dicts keep the dtype of before.

    Left alone: buffers of modules that stay in full precision, and of ignored modules.
    """
    dtypes = {unit.fqn: resolve_dtype(unit.config.buffer_dtype) for unit in plan.units}
    ignored = set(plan.ignored_modules)
    for fqn, module in model.named_modules():
        dtype = _of_nearest(fqn, dtypes)
        if dtype is None or fqn in plan.full_precision or fqn in ignored:
            continue
        before: dict[str, torch.dtype] = {}
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and buffer.dtype != dtype:
                before[name] = buffer.dtype
                setattr(module, name, buffer.to(dtype))
        if before:
            module.register_state_dict_post_hook(partial(_restore_dtypes, before))


def _of_nearest(fqn: str, values: dict[str, torch.dtype | None]) -> torch.dtype | None:
    """Return the value of the unit that a module belongs to: itself, or the nearest one above."""
    # It ends at the root, whose name is empty.
    while fqn not in values:
        fqn = fqn.rpartition(".")[0]
    return values[fqn]


def _restore_dtypes(
    dtypes: dict[str, torch.dtype], module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
) -> None:
    del module, metadata
    for name, dtype in dtypes.items():
        if isinstance(state.get(prefix + name), torch.Tensor):
            state[prefix + name] = state[prefix + name].to(dtype)
