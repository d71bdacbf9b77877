"""Hooks of parameters, and what they reach: optimizers that step in backward.

A part of :mod:`fsdp_migrate.torch_compat`, and under its rule: no other file asks which torch this is or
touches its privates. What is read here was checked on 2.6, 2.7, 2.13 and 2.15.
"""
# torch has no public way to list the hooks of a tensor.

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch


def hooks_after_accumulation(parameter: torch.Tensor) -> list[Callable[[Any], None]]:
    """Return what ``register_post_accumulate_grad_hook`` was given."""
    return list((getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values())


def hooks_of_gradient(parameter: torch.Tensor) -> list[Callable[[Any], Any]]:
    """Return what ``register_hook`` was given."""
    return list((getattr(parameter, "_backward_hooks", None) or {}).values())


def optimizers_in_backward(parameter: torch.Tensor) -> list[Optimizer]:
    """Return the optimizers that ``_apply_optimizer_in_backward`` has given to a parameter."""
    return list(getattr(parameter, "_in_backward_optimizers", ()))


def move_optimizers_in_backward(old: nn.Parameter, new: nn.Parameter) -> None:
    """Let the optimizers of one parameter step another one when its gradient is there, as FSDP1 did.

    torch finds them by the attributes when it saves their state. The hook that steps the old parameter
    hangs on its own node of the graph, which no backward comes to any more.
    """
    optimizers = optimizers_in_backward(old)
    if not optimizers:
        return
    # `_get_in_backward_optimizers` of torch looks for them on the parameters that the model has now.
    for name in ("_in_backward_optimizers", "_optimizer_classes", "_optimizer_kwargs"):
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))

    def step(parameter: torch.Tensor) -> None:
        for optimizer in optimizers:
            optimizer.step()
        # So does torch's own hook: what was stepped must not be added to by the next backward.
        parameter.grad = None

    new.register_post_accumulate_grad_hook(step)


def move_hooks_after_accumulation(old: nn.Parameter, new: nn.Parameter) -> None:
    """Call the hooks of one parameter with another one, after each reduction of its gradient."""
    for hook in hooks_after_accumulation(old):
        new.register_post_accumulate_grad_hook(hook)


def optimizers_of_hook(hook: Callable[..., Any]) -> list[Optimizer]:
    """Return the optimizers that a hook uses, as far as they stand in what it can name."""
    found: list[Optimizer] = []
    for value in _named_by(hook):
        inner = list(value.values()) if isinstance(value, dict) else value
        for each in inner if isinstance(inner, (list, tuple, set)) else [inner]:
            found += [each] if isinstance(each, Optimizer) else []
    return found


def rekey_what_hook_names(hook: Callable[..., Any], replaced: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Put new parameters for old ones into the keys of dicts that a hook looks its parameter up in."""
    for value in _named_by(hook):
        if isinstance(value, dict) and any(isinstance(key, nn.Parameter) for key in value):
            items = [
                (replaced.get(key, key) if isinstance(key, nn.Parameter) else key, item)
                for key, item in value.items()
            ]
            value.clear()
            value.update(items)


def name_of(hook: Callable[..., Any]) -> str:
    """Return how a hook is called in its source."""
    inner = hook.func if isinstance(hook, partial) else hook
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def _named_by(hook: Callable[..., Any]) -> Iterator[Any]:
    """Yield what a function can name without an argument: bound, closed over, default, or global."""
    if isinstance(hook, partial):
        yield from (*hook.args, *hook.keywords.values())
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    if owner is None and not inspect.isroutine(hook):
        owner, hook = hook, type(hook).__call__
    yield from getattr(owner, "__dict__", {}).values()
    # Bound methods and decorated functions keep what they name in the function below.
    function: Any = inspect.unwrap(getattr(hook, "__func__", hook))
    if not inspect.isfunction(function):
        return
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    scope = function.__globals__
    yield from (scope[name] for name in function.__code__.co_names if name in scope)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
