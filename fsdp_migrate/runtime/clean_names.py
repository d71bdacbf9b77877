"""Names of parameters without what ``torch.compile`` and ``checkpoint_wrapper`` put into them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Mapping


WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}
"""What ``torch.compile`` and ``checkpoint_wrapper`` put into names; torch's state dicts leave it out."""


def clean_parameter_name(name: str) -> str:
    """Take what ``torch.compile`` and ``checkpoint_wrapper`` put into a name out of it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def clean_key(name: Any) -> Any:
    """Return the clean name, or the number under which a raw optimizer state has a parameter."""
    return clean_parameter_name(name) if isinstance(name, str) else name


def with_clean_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of its own with clean names, and the versions of modules that it carries for hooks.

    FSDP1's states of a model below ``torch.compile`` have its part in each name. Where two names would
    become one, all stay as they are.

    Example:
        >>> with_clean_names({"_orig_mod.0.weight": 1, "step": 2})
        {'0.weight': 1, 'step': 2}
    """
    own = copy.copy(state) if isinstance(state, dict) else dict(state)
    items = [(clean_key(name), value) for name, value in own.items()]
    if len({name for name, _ in items}) == len(own):
        own.clear()
        own.update(items)
    return own
