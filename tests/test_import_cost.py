"""What must not wait for torch or LibCST: the help, and everything that works on configs."""

from __future__ import annotations

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
    "fsdp_migrate.adapters.config_objects.composer",
]
HEAVY = ("torch", "numpy", "composer", "libcst")
# What the interpreter loads by itself (`.pth` files) may be there too.
HELP_NEEDS = {
    "fsdp_migrate",
    "typer",
    "rich",
    "pygments",
    "markdown_it",
    "mdurl",
    "shellingham",
    "attr",
    "click",
}
HELP_NEEDS |= {"annotated_doc", "sitecustomize", "usercustomize", "distutils-precedence", "typing_extensions"}


def heavy_imports(code: str) -> list[str]:
    """Run ``code`` in a new interpreter and return which heavy modules it loaded."""
    report = (
        f"import sys; sys.stderr.write('\\nloaded: ' + ' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    command = [sys.executable, "-c", f"{code}\n{report}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400, cwd=ROOT)
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


def test_help_loads_little_else() -> None:
    """What `--help` costs is what it imports; `make bench` holds it to the time of these libraries alone."""
    code = "from fsdp_migrate.cli import main; main(['--help'])"
    show = (
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names, file=sys.stderr)"
    )
    command = [sys.executable, "-c", f"import sys\n{code}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400, cwd=ROOT)
    loaded = {name for name in done.stderr.split() if not name.startswith("_")}
    assert "typer" in loaded
    assert loaded <= HELP_NEEDS
