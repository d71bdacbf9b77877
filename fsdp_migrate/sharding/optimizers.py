"""Optimizers built before sharding: their parameters and state, moved to the sharded parameters."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fsdp_migrate.arguments import SEVERAL, check_arguments
from fsdp_migrate.errors import OptimizerError
from fsdp_migrate.findings import counted, listed, make_finding
from fsdp_migrate.sharding.mixed_groups import make_mixable, make_steppable, may_be_refused
from fsdp_migrate.torch_compat import device_meshes, parameter_hooks
from fsdp_migrate.torch_compat.switched import name_of_gathered
from fsdp_migrate.torch_compat.tensor_kinds import is_made_of_tensors


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.findings import Finding


_DEEPEST_WRAPPER = 8
_REPLACED = "_fsdp_migrate_replaced"
_checked: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = weakref.WeakKeyDictionary()
"""How many parameters an optimizer held when it was looked at, and whether each of its steps has to be."""


def as_list(optimizers: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """Return one or several optimizers as a list; what wraps one is taken by its shape.

    What has groups and state is one itself. Of a wrapper that has no state of its own, the optimizer in its
    ``optim`` or ``optimizer`` is taken.

    Raises:
        ConfigError: It is neither an optimizer nor several things.
        OptimizerError: One of them is no optimizer, or shows its groups and not its state.
    """
    if optimizers is None:
        return []
    if _is_one(optimizers) or (_steps(optimizers) and not hasattr(optimizers, "__iter__")):
        return [_taken(optimizers)]
    check_arguments(SEVERAL, optimizers=optimizers)
    return [_taken(each) for each in cast("Iterable[Optimizer]", optimizers)]


def _is_one(each: object) -> bool:
    has_both = hasattr(each, "param_groups") and hasattr(each, "state")
    return has_both and not isinstance(each, type)


def _steps(each: object) -> bool:
    """Tell whether something is used as an optimizer; a schedule, which holds one too, is not."""
    is_used = hasattr(each, "param_groups") or hasattr(each, "zero_grad")
    return is_used and not isinstance(each, (type, nn.Module))


def _taken(each: object) -> Optimizer:
    """Return an optimizer, out of what wraps it if need be."""
    inner = each
    for _ in range(_DEEPEST_WRAPPER):
        if _is_one(inner):
            return cast("Optimizer", inner)
        if not _steps(inner):
            break
        inner = getattr(inner, "optim", None) or getattr(inner, "optimizer", None)
    if hasattr(each, "param_groups") and not isinstance(each, type):
        msg = (
            f"`optimizers` has a {type(each).__name__} with `param_groups`, but without `state`, and without "
            "an optimizer in `optim` or `optimizer`. Give the optimizer that it wraps."
        )
        raise OptimizerError(msg)
    msg = f"`optimizers` holds {each!r:.100}; expected optimizers of torch's kind."
    raise OptimizerError(msg)


def check_optimizers(optimizers: Iterable[Optimizer], names: Mapping[nn.Parameter, tuple[str, ...]]) -> None:
    """Check that every parameter of the optimizers is the model's, before anything is changed.

    Raises:
        OptimizerError: Some are not; the message says which group they are in. Or something is no optimizer,
            or has state that cannot be sharded.
    """
    for position, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            strangers = [param for param in group["params"] if param not in names]
            if not strangers:
                continue
            shapes = listed(list(param.shape) for param in strangers)
            msg = (
                f"Optimizer {position} ({type(optimizer).__name__}) has "
                f"{counted(len(strangers), 'parameter')} in group {index} that the model does not have, of "
                f"the shapes {shapes}. Build it from this model's parameters, or shard the model that it "
                "belongs to."
            )
            raise OptimizerError(msg)
        whose = f"Optimizer {position} ({type(optimizer).__name__})"
        states: dict[Any, dict[str, Any]] = dict(optimizer.state)
        for param, state in states.items():
            if param in names:
                _check_state(whose, names[param][0], param, state)


def _check_state(whose: str, name: str, param: torch.Tensor, state: Mapping[str, Any]) -> None:
    """Check that the state of a parameter is a value for each of its elements, or single values."""
    for key, value in state.items():
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(tensor, torch.Tensor) or tensor.numel() <= 1:
                continue
            # `_shard_like` cuts plain tensors alone: what stands in a list would stay whole.
            if tensor.shape == param.shape and not is_made_of_tensors(tensor) and tensor is value:
                continue
            msg = (
                f"{whose} has state that cannot be cut with its parameter: `{key}` of `{name}`, a "
                f"{type(tensor).__name__} of the shape {list(tensor.shape)}, where the parameter has "
                f"{list(param.shape)}. It is not one plain value for each element. Shard the model "
                "before the optimizer's first step, or build the optimizer from the sharded parameters."
            )
            raise OptimizerError(msg)


def repoint_optimizers(
    optimizers: Iterable[Optimizer],
    names: Mapping[nn.Parameter, tuple[str, ...]],
    sharded: Mapping[str, nn.Parameter],
) -> None:
    """Put the sharded parameters in the place of the old ones, by name.

    Groups, their order and their settings stay as they are, but for ``foreach`` and ``fused`` in groups that
    hold ignored parameters too, or several meshes, where torch cannot have them. State that has a
    parameter's shape is sharded like the parameter; other state, such as step counters, moves as it is.

    Args:
        optimizers: The optimizers, changed in place.
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [sharded[names[p][0]] if p in names else p for p in group["params"]]
            make_mixable(optimizer, group)
        _repoint_lists(optimizer, names, sharded)
        old_state: dict[Any, dict[str, Any]] = dict(optimizer.state)
        optimizer.state.clear()
        for param, state in old_state.items():
            new = sharded[names[param][0]] if param in names else param
            optimizer.state[new] = {key: _shard_like(value, param, new) for key, value in state.items()}


def _repoint_lists(
    optimizer: Optimizer, names: Mapping[nn.Parameter, tuple[str, ...]], sharded: Mapping[str, nn.Parameter]
) -> None:
    """Do the same in lists that an optimizer has made of its parameters, as LBFGS does."""
    for value in vars(optimizer).values():
        if isinstance(value, list) and value and all(isinstance(each, nn.Parameter) for each in value):
            value[:] = [sharded[names[param][0]] if param in names else param for param in value]


def move_steps_in_backward(
    names: Mapping[nn.Parameter, tuple[str, ...]], sharded: Mapping[str, nn.Parameter]
) -> None:
    """Let what steps in backward go on with the sharded parameters, after each reduction.

    ``_apply_optimizer_in_backward``, which FSDP1 heeded so; and hooks for accumulated gradients, which it
    did not. The optimizers of both are pointed at the sharded parameters, and dicts in which a hook looks
    its parameter up get the new ones as keys.

    Args:
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    replaced = {param: sharded[name] for param, (name, *_) in names.items() if sharded[name] is not param}
    optimizers: dict[int, Optimizer] = {}
    for old, new in replaced.items():
        hooks = parameter_hooks.hooks_after_accumulation(old)
        found = [each for hook in hooks for each in parameter_hooks.optimizers_of_hook(hook)]
        for optimizer in (*parameter_hooks.optimizers_in_backward(old), *found):
            optimizers[id(optimizer)] = optimizer
        # torch registers no hook for the gradient of what needs none.
        if new.requires_grad:
            parameter_hooks.move_optimizers_in_backward(old, new)
            parameter_hooks.move_hooks_after_accumulation(old, new)
        for hook in hooks:
            parameter_hooks.rekey_what_hook_names(hook, replaced)
    repoint_optimizers(optimizers.values(), names, sharded)


def steps_in_backward(params: Mapping[str, nn.Parameter]) -> Iterator[Finding]:
    """Tell what steps in backward, and what was told to FSDP1 in vain.

    Raises:
        OptimizerError: A parameter has a hook that uses an optimizer, and that nothing would call.
    """
    in_backward, after, never = 0, [], []
    for name, param in params.items():
        for hook in parameter_hooks.hooks_of_gradient(param) if param.requires_grad else ():
            never.append(name)
            if not parameter_hooks.optimizers_of_hook(hook):
                continue
            msg = (
                f"Parameter `{name}` has the hook `{parameter_hooks.name_of(hook)}` (`register_hook`), which "
                "uses an optimizer. Nothing would call it; FSDP1 did not call it either. Remove it, "
                "or register it on the sharded parameter by `register_post_accumulate_grad_hook`, after "
                "prepare_fully_shard."
            )
            raise OptimizerError(msg)
        in_backward += bool(parameter_hooks.optimizers_in_backward(param))
        after += [name] if parameter_hooks.hooks_after_accumulation(param) else []
    if in_backward:
        stepped = "1 parameter is" if in_backward == 1 else f"{in_backward} parameters are"
        text = f"{stepped} stepped in backward, after each reduction, as under FSDP1."
        yield make_finding("FM110", "_apply_optimizer_in_backward", text)
    if after:
        text = (
            f"Hooks for the accumulated gradients of {counted(len(after), 'parameter')}, such as "
            f"`{after[0]}`, are called with the sharded parameter, after each reduction. FSDP1 called "
            "none."
        )
        hint = "If they step optimizers that were stepped in another way under FSDP1, remove the hooks."
        yield make_finding("FM111", "register_post_accumulate_grad_hook", text, hint)
    if never:
        text = f"Hooks of {counted(len(never), 'parameter')}, such as `{never[0]}`, are not called."
        hint = "Register them on the sharded parameters by `register_post_accumulate_grad_hook`."
        yield make_finding("FM116", "register_hook", text, hint)


def watch_replaced(
    names: Mapping[nn.Parameter, tuple[str, ...]], sharded: Mapping[str, nn.Parameter]
) -> None:
    """Let an optimizer that still holds parameters from before sharding fail at its first step.

    FSDP1 with ``use_orig_params`` kept the parameters, so that an optimizer from before went on; FSDP2 puts
    others in their place, and such an optimizer would train nothing without a word. Each optimizer is looked
    at once, in the first step after a model was sharded, by torch's hook for the steps of all optimizers.

    Args:
        names: The parameters of before, with their names.
        sharded: The parameters of now, by name.
    """
    for param, (name, *_) in names.items():
        if sharded[name] is not param:
            setattr(param, _REPLACED, name)
    # An optimizer that was right may hold parameters that were replaced just now.
    _checked.clear()
    _watch_steps()


@functools.cache
def _watch_steps() -> None:
    """Look at the steps of all optimizers from now on; once a process."""
    register_optimizer_step_pre_hook(_look_before_step)


def _look_before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Check an optimizer before its step; all ranks that run the same code fail alike."""
    del args, kwargs
    params = [param for group in optimizer.param_groups for param in group["params"]]
    count, is_mixed = _checked.get(optimizer, (-1, False))
    # By the number: `add_param_group` may have brought others since.
    if count != len(params):
        _refuse_replaced(optimizer, params)
        is_mixed = may_be_refused(optimizer)
        _checked[optimizer] = (len(params), is_mixed)
    if is_mixed:  # before every step: which have gradients changes, and a state that is loaded sets options
        make_steppable(optimizer)


def _refuse_replaced(optimizer: Optimizer, params: list[torch.Tensor]) -> None:
    """Check that an optimizer steps the model's parameters, and not what was in their place."""
    old = [name for param in params if (name := getattr(param, _REPLACED, None)) is not None]
    if old:
        msg = (
            f"This {type(optimizer).__name__} holds {counted(len(old), 'parameter')} from before the model "
            f"was sharded, such as `{old[0]}`: it would train nothing. Give it to "
            "`prepare_fully_shard(..., optimizers=optimizer)`, or build it from the sharded model's "
            "parameters."
        )
        raise OptimizerError(msg)
    gathered = [name for param in params if (name := name_of_gathered(param)) is not None]
    if gathered:
        msg = (
            f"This {type(optimizer).__name__} holds {counted(len(gathered), 'whole parameter')}, such as "
            f"`{gathered[0]}`, which FSDP2 had gathered for a forward when they were taken from the "
            "model, and drops again: it would train nothing. Call `reshard()` of every FSDPModule in "
            "`model.modules()`, then take the parameters."
        )
        raise OptimizerError(msg)


def _shard_like(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Shard a state tensor of the old parameter's shape like the new parameter; without communication."""
    if not isinstance(value, torch.Tensor) or not isinstance(new, DTensor) or value.shape != old.shape:
        return value
    local = value.to_local() if isinstance(value, DTensor) else value.detach()
    # FSDP's dimensions come first; over those of another parallelism the old state is cut already.
    ours = new.device_mesh.ndim - (old.device_mesh.ndim if isinstance(old, DTensor) else 0)
    for dim, placement in enumerate(new.placements[:ours]):
        rows = device_meshes.shard_dim(placement)
        if rows is not None:
            chunks = local.chunk(new.device_mesh.size(dim), rows)
            mine = new.device_mesh.get_local_rank(dim)
            # Of few rows torch.chunk makes fewer parts than there are ranks; the last ranks hold none.
            local = chunks[mine] if mine < len(chunks) else local.narrow(rows, 0, 0)
    return DTensor.from_local(
        # Memory of its own: a chunk is a view, which would keep the whole state alive.
        local.to(new.to_local().device).contiguous().clone(),
        new.device_mesh,
        new.placements,
        run_check=False,
        shape=value.shape,
        stride=new.stride(),
    )
