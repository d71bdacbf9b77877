"""The frameworks whose configs are known. Where several know the same block, the first one has it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.accelerate import AccelerateAdapter
from fsdp_migrate.adapters.axolotl import AxolotlAdapter
from fsdp_migrate.adapters.composer import ComposerAdapter
from fsdp_migrate.adapters.hf_trainer import HFTrainerAdapter
from fsdp_migrate.adapters.lightning import LightningAdapter
from fsdp_migrate.adapters.torch_kwargs import TorchAdapter


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.engine.base import Adapter


_ALL: tuple[Adapter, ...] = (
    AccelerateAdapter(),
    AxolotlAdapter(),
    LightningAdapter(),
    ComposerAdapter(),
    HFTrainerAdapter(),
    TorchAdapter(),
)
ADAPTERS: Mapping[str, Adapter] = MappingProxyType({adapter.name: adapter for adapter in _ALL})
