"""Which device the model goes to, and whether memory is pinned."""

from __future__ import annotations

import pytest
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy as TorchOffloadPolicy

from fsdp_migrate.config import FSDP2Config, OffloadPolicy
from fsdp_migrate.sharding import resolve
from fsdp_migrate.torch_compat import devices


def test_memory_is_pinned_where_there_is_an_accelerator_to_copy_to() -> None:
    policy = resolve.resolve_offload_policy(OffloadPolicy())
    assert isinstance(policy, CPUOffloadPolicy)
    assert policy.pin_memory is (devices.accelerator_type() is not None)
    pinned = resolve.resolve_offload_policy(OffloadPolicy(pin_memory=True))
    assert isinstance(pinned, CPUOffloadPolicy)
    assert pinned.pin_memory
    assert type(resolve.resolve_offload_policy(None)) is TorchOffloadPolicy


@pytest.mark.parametrize(
    ("device_id", "device"), [("cpu", "cpu"), ("cuda:1", "cuda"), (3, None), (None, None)]
)
def test_the_device_is_that_of_device_id_or_the_accelerator(
    device_id: int | str | None, device: str | None
) -> None:
    found = resolve.resolve_device_type(FSDP2Config(device_id=device_id))
    assert found == (device or devices.accelerator_type() or "cpu")
