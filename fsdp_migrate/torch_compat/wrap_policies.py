"""FSDP1's auto-wrap policies, told from other callables and run without wrapping."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from torch import nn


def run_wrap_policy(
    policy: Any, root: nn.Module, ignored_modules: set[nn.Module]
) -> dict[nn.Module, dict[Any, Any]] | None:
    """Run a policy object of torch's (``ModuleWrapPolicy``, ``CustomPolicy``).

    Returns each selected module with the FSDP1 arguments that the policy gives it, or None for a plain
    callable, which FSDP1 evaluates in another way. ``_Policy._run_policy`` is the same in 2.6 to 2.15.
    """
    run = getattr(policy, "_run_policy", None)
    if run is None:
        return None
    selected: dict[nn.Module, dict[Any, Any]] = run(root, ignored_modules, {})
    return selected


def is_of_torch(error: ValueError) -> bool:
    """Tell whether a ``CustomPolicy`` complains of an answer, and not the user's function itself."""
    return str(error).startswith("The lambda_fn passed to CustomPolicy")


def is_wrap_policy(choice: Any) -> bool:
    """Tell one of FSDP1's auto-wrap policies, or a callable of the same arguments, from other callables."""
    if hasattr(choice, "_run_policy"):
        return True
    try:
        parameters = inspect.signature(choice).parameters
    except (TypeError, ValueError):
        return False
    return {"recurse", "nonwrapped_numel"} <= set(parameters)
