"""What is taken for sure to be had is had of the torch and the Python that are installed."""

from __future__ import annotations

import importlib

import pytest

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.sure_imports import EXPORTS, is_sure


@pytest.mark.parametrize("module", sorted(EXPORTS))
def test_each_name_is_there(module: str) -> None:
    """As ``from module import name`` finds it: an attribute, or a module below it."""
    for name in sorted(EXPORTS[module]):
        namespace: dict[str, object] = {}
        exec(f"from {module} import {name}", namespace)
        assert name in namespace


@pytest.mark.parametrize("name", sorted(catalog.PUBLIC_NAMES))
def test_fsdp1s_names_that_are_not_had_of_its_package(name: str) -> None:
    """``ShardedGradScaler`` stands in a module of its own, so that this import always fails."""
    home = importlib.import_module("torch.distributed.fsdp")
    assert is_sure("torch.distributed.fsdp", [name]) is hasattr(home, name)
