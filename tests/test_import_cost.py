"""What must not wait for torch: the help, and everything that works on configs."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.ranks import ROOT


pytestmark = pytest.mark.any_torch


LIGHT = [
    "fsdp_migrate",
    "fsdp_migrate.cli",
    "fsdp_migrate.config",
    "fsdp_migrate.mapping",
    "fsdp_migrate.findings",
    "fsdp_migrate.config_files",
    "fsdp_migrate.adapters.composer",
]
HEAVY = ("torch", "numpy", "composer")


def heavy_imports(code: str) -> list[str]:
    """Run ``code`` in a new interpreter and return which heavy modules it loaded."""
    report = (
        f"import sys; sys.stderr.write('\\nloaded: ' + ' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    command = [sys.executable, "-c", f"{code}\n{report}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    return result.stderr.rpartition("\nloaded: ")[2].split()


@pytest.mark.parametrize("module", LIGHT)
def test_importing_does_not_load_torch(module: str) -> None:
    assert heavy_imports(f"import {module}") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["convert", "--help"], ["demo", "--help"]])
def test_help_does_not_load_torch(arguments: list[str]) -> None:
    assert heavy_imports(f"from fsdp_migrate.cli import main\nassert main({arguments!r}) == 0") == []


def test_converting_a_config_does_not_load_torch() -> None:
    arguments = ["config", "examples/configs/accelerate.yaml"]
    assert heavy_imports(f"from fsdp_migrate.cli import main\nassert main({arguments!r}) == 0") == []


def test_the_check_can_fail() -> None:
    assert heavy_imports("import numpy") == ["numpy"]
    assert "torch" in heavy_imports("import fsdp_migrate\nfsdp_migrate.prepare_fully_shard")


def test_help_is_quick() -> None:
    def seconds() -> float:
        """Return the processor time, which other work on the machine inflates less than the wall time."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = "from fsdp_migrate.cli import main; main(['--help'])"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(8)) < 0.3
