"""The package runs as a module."""

from __future__ import annotations

import subprocess
import sys

import pytest


pytestmark = pytest.mark.any_torch


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    assert result.stdout.startswith("fsdp-migrate ")
