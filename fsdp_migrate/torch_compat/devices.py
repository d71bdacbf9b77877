"""Which devices this process can use."""

from __future__ import annotations

import torch


def accelerator_type() -> str | None:
    """Return the type of the accelerator that can be used here, such as ``cuda``, or None."""
    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    return None if device is None else device.type


def device_count(device_type: str) -> int:
    """Return how many devices of the type this process can use; the CPU is one.

    A device that this build of torch does not know has modules without the functions that ask for it.
    """
    if device_type == "cpu":
        return 1
    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:
        return 0
    is_available = getattr(module, "is_available", None)
    if is_available is not None and not is_available():
        return 0
    return int(module.device_count())


def make_current(device_type: str, index: int | None) -> None:
    """Make a device the current one, on which FSDP2 puts what it shards; nothing on the CPU."""
    if device_type != "cpu" and index is not None:
        torch.get_device_module(device_type).set_device(index)


def synchronize(device_type: str) -> None:
    """Wait until the current device of this type has done all that it was given; nothing on the CPU."""
    if device_type != "cpu":
        torch.get_device_module(device_type).synchronize()


def release_cached(device_type: str) -> None:
    """Give memory that torch keeps for later back to the device; nothing on the CPU."""
    empty_cache = (
        None if device_type == "cpu" else getattr(torch.get_device_module(device_type), "empty_cache", None)
    )
    if empty_cache is not None:
        empty_cache()
