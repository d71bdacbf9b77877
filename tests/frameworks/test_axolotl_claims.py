"""Axolotl's own schema, against what is claimed of it: its files are read without its packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.adapters.axolotl import AXOLOTL_KEYS
from fsdp_migrate.adapters.engine.claims import AXOLOTL, AXOLOTL_REFUSED_OPTIMIZERS
from tests.frameworks.claims import wrong


pytestmark = pytest.mark.any_torch


def schemas() -> Path:
    spec = importlib.util.find_spec("axolotl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "utils" / "schemas"


def fields() -> set[str]:
    spec = importlib.util.spec_from_file_location("axolotl_fsdp", schemas() / "fsdp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config: Any = module.FSDPConfig
    return set(config.model_fields)


def test_what_is_claimed_of_axolotl() -> None:
    text = "".join(file.read_text() for file in sorted(schemas().glob("*.py")))
    listed = ", ".join(f'"{name}"' for name in sorted(AXOLOTL_REFUSED_OPTIMIZERS))
    found = {
        "optimizers": f"[{listed}]" in text,
        "quantised_rl": "FSDP2 does not support load_in_8bit or load_in_4bit with" in text,
        "bare_keys": 'key.startswith("fsdp_")' in text,
    }
    assert wrong(AXOLOTL, "axolotl", found) == []


def test_every_key_that_is_kept_is_a_field() -> None:
    kept = {key.name for key in AXOLOTL_KEYS if key.becomes.startswith("kept")}
    if not (schemas() / "fsdp.py").is_file():
        pytest.skip("before 0.13 no schema names the fields")
    assert kept - fields() == set()
