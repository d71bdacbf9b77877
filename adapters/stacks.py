"""The stacks whose configs are known. Where several know the same block, the first one has it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.accelerate import AccelerateAdapter


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.base import Adapter


ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {adapter.name: adapter for adapter in (AccelerateAdapter(),)}
)
STACKS: tuple[str, ...] = tuple(ADAPTERS)
