"""Calls of makers that are told not to shard: ``build_model(config, use_fsdp=False)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable


# `fsdp_cpu_offload=False` and the like leave the model sharded.
_SWITCH = re.compile(
    r"^_?((apply|do|enable|in|is|run|to|use|using|with|wrap|wrap_in)_)?"
    r"(dist|distributed|fsdp1?|fully_shard|shard|sharded|sharding|wrap)"
    r"(_(config|enable|enabled|mode|model|on|plugin|wrap|wrapped|wrapping))?$"
)
_OFF = frozenset({"0", "False", "None"})


def is_switched_off(given: Iterable[tuple[str, str]]) -> bool:
    """Tell whether what a call is given by name says that its model is not sharded.

    Args:
        given: The names of arguments, and the texts of their values.

    Example:
        >>> is_switched_off([("use_fsdp", "False")]), is_switched_off([("fsdp_cpu_offload", "False")])
        (True, False)
    """
    return any(value in _OFF and _SWITCH.match(name.lower()) is not None for name, value in given)
