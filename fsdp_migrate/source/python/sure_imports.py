"""Imports that succeed with every torch that is taken here, FSDP2's among them."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog


if TYPE_CHECKING:
    from collections.abc import Collection


_FSDP2: Final = frozenset(
    {
        *("CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard"),
        "register_fsdp_forward_method",
    }
)
_HOMES: Final = frozenset({"torch.distributed._composable.fsdp", "torch.distributed.fsdp"})
_TENSORS: Final = frozenset({"DTensor", "DeviceMesh", "Replicate", "Shard", "distribute_tensor"})
_BESIDE: Final = {
    "torch": frozenset({"distributed", "nn", "optim"}),
    "torch.distributed.device_mesh": frozenset({"DeviceMesh", "init_device_mesh"}),
    "torch.distributed._tensor": _TENSORS,
    "torch.distributed.tensor": _TENSORS,
}
_WHOLE: Final = frozenset({"torch", "torch.distributed", "torch.distributed.fsdp", "torch.nn"})
_BUILTINS: Final = frozenset(dir(builtins))
MISSING: Final = frozenset({"ImportError", "ModuleNotFoundError"})
"""What an import raises that finds nothing."""


def is_sure(module: str, names: Collection[str]) -> bool:
    """Tell whether an import succeeds, of names or, where there are none, of a module as a whole.

    Example:
        >>> is_sure("torch.distributed.fsdp", ["fully_shard"]), is_sure("apex", [])
        (True, False)
    """
    if module.split(".", maxsplit=1)[0] in sys.stdlib_module_names:
        return True
    if not names:
        return module in _WHOLE
    known = _FSDP2 | catalog.PUBLIC_NAMES if module in _HOMES else _BESIDE.get(module, frozenset())
    return known.issuperset(names) and (module != "torch.distributed._composable.fsdp" or {*names} <= _FSDP2)


def is_fsdp2s(module: str, names: Collection[str]) -> bool:
    """Tell whether an import brings what shards by FSDP2, or its class.

    Example:
        >>> is_fsdp2s("torch.distributed.fsdp", ["fully_shard"]), is_fsdp2s("torch.distributed.fsdp", ["x"])
        (True, False)
    """
    return module in _HOMES and not {"FSDPModule", "fully_shard"}.isdisjoint(names)


def may_miss(text: str | None, qualified: Collection[str]) -> bool:
    """Tell whether what a call runs may import something that is missing: a function of the project may.

    Args:
        text: The function, as it is written; None for what is no name.
        qualified: What it stands for by its imports.
    """
    if text is None:
        return True
    root, _, rest = text.partition(".")
    if qualified:
        roots = {each.split(".")[0] for each in qualified}
        return not roots <= {"torch", *sys.stdlib_module_names}
    return root in {"cls", "self", "super()"} if rest else root not in _BUILTINS
