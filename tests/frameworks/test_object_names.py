"""The methods by which sources' Accelerators and Fabrics are known exist."""

from __future__ import annotations

import importlib.util

import pytest
from accelerate import Accelerator

from fsdp_migrate.source.python.accelerators import ACCELERATORS, UNWRAPS
from fsdp_migrate.source.python.fabric_models import FABRICS


def test_an_accelerator_has_what_it_is_known_by() -> None:
    assert all(hasattr(Accelerator, name) for name in ACCELERATORS.shards | ACCELERATORS.tells | {UNWRAPS})


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")
def test_a_fabric_has_what_it_is_known_by() -> None:
    from lightning.fabric import Fabric

    assert all(hasattr(Fabric, name) for name in FABRICS.shards | FABRICS.tells)
