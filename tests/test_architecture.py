"""Holds the layout of the packages: who may import whom, and what stays in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture import (
    function_lengths,
    package_modules,
    runtime_imports,
    torch_privates,
)


MODULES = package_modules()

# What a module may import of this package: its own layer and those above it in this list.
LAYERS = (
    {"errors"},
    {"findings"},
    {"words", "torch_compat"},
    {"config"},
    {"check", "mapping", "optimizers", "precision", "resolve", "tying", "wrap"},
    {"plan"},
    {"prepare"},
)
ALLOWED = {
    "checkpoint_convert": {"errors", "findings"},
    "adapters": {"config", "errors", "findings", "mapping", "words"},
}
MAX_FILE = 500
MAX_FUNCTION = 60
NO_DUMPING_GROUNDS = {"utils", "types", "constants", "helpers", "common", "misc"}


def forbidden_imports(name: str, tree: ast.Module) -> list[str]:
    """Return what the module ``name`` imports of this package and may not."""
    own = _part(name)
    return [
        imported
        for imported, _ in runtime_imports(tree)
        if imported.startswith("fsdp_migrate.") and not _may_import(own, _part(imported))
    ]


def _part(name: str) -> str:
    """Return the part of the package that ``name`` is in: a module at the top, or a subpackage."""
    return name.split(".")[1] if "." in name else ""


def _may_import(own: str, other: str) -> bool:
    if own in ("cli", "__main__") or other == own:
        return True
    if other in ("cli", "__main__"):
        return False
    if own in ALLOWED:
        return other in ALLOWED[own]
    if own == "demo":
        return True
    level = _level(own)
    return any(other in layer for layer in LAYERS[: level + 1])


def _level(part: str) -> int:
    return next((level for level, layer in enumerate(LAYERS) if part in layer), -1)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    assert forbidden_imports(name, tree) == []
    assert [module for module, level in runtime_imports(tree) if level] == [], "relative imports"


def test_every_module_at_the_top_has_a_layer() -> None:
    parts = {_part(name) for name in MODULES} - {""}
    known = set().union(*LAYERS) | set(ALLOWED) | {"cli", "demo", "__main__"}
    assert parts <= known, "give the new module a place in LAYERS"


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("fsdp_migrate.config", "from fsdp_migrate.prepare import x", ["fsdp_migrate.prepare.x"]),
        ("fsdp_migrate.config", "from fsdp_migrate import words", []),
        ("fsdp_migrate.config", "from fsdp_migrate import plan", ["fsdp_migrate.plan"]),
        ("fsdp_migrate.plan", "def f():\n    import fsdp_migrate.cli", ["fsdp_migrate.cli"]),
        ("fsdp_migrate.adapters.base", "from fsdp_migrate.mapping import x", []),
        ("fsdp_migrate.adapters.base", "from fsdp_migrate.plan import x", ["fsdp_migrate.plan.x"]),
        (
            "fsdp_migrate.checkpoint_convert.plan",
            "from fsdp_migrate.config import x",
            ["fsdp_migrate.config.x"],
        ),
        ("fsdp_migrate.checkpoint_convert.plan", "from fsdp_migrate.checkpoint_convert import x", []),
        (
            "fsdp_migrate.mapping",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fsdp_migrate.plan import x",
            [],
        ),
        ("fsdp_migrate.brand_new", "from fsdp_migrate.errors import x", ["fsdp_migrate.errors.x"]),
    ],
)
def test_the_import_check_can_fail(name: str, source: str, expected: list[str]) -> None:
    assert forbidden_imports(name, ast.parse(source)) == expected


def test_relative_imports_are_seen() -> None:
    assert list(runtime_imports(ast.parse("from . import x"))) == [(".x", 1)]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_cli_imports_rich_and_typer(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    found = {module.split(".")[0] for module, _ in runtime_imports(tree)} & {"rich", "typer", "click"}
    assert not found or name.startswith("fsdp_migrate.cli")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_torch_privates_stay_in_torch_compat(name: str) -> None:
    if name != "fsdp_migrate.torch_compat":
        assert list(torch_privates(ast.parse(MODULES[name].read_text()))) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch._C", ["torch._C"]),
        ("from torch.distributed._tensor import DTensor", ["torch.distributed._tensor.DTensor"]),
        ("from torch.utils import _pytree", ["torch.utils._pytree"]),
        ("import torch.distributed as dist\ndist._x()", ["dist._x"]),
        ("import torch\ntorch.distributed._y.z()", ["torch.distributed._y", "torch.distributed._y.z"]),
        ("import torch\ntorch.__version__", []),
        ("self._x = 1", []),
    ],
)
def test_the_check_for_torch_privates_can_fail(source: str, expected: list[str]) -> None:
    assert sorted(torch_privates(ast.parse(source))) == expected


@pytest.mark.parametrize("name", sorted(MODULES))
def test_files_and_functions_stay_short(name: str) -> None:
    text = MODULES[name].read_text()
    assert len(text.splitlines()) <= MAX_FILE
    long = {f: n for f, n in function_lengths(ast.parse(text)) if n > MAX_FUNCTION}
    assert long == {}


def test_the_check_for_lengths_can_fail() -> None:
    source = "def short():\n    'text\\\n    more'\n    pass\n\ndef long():\n" + "    pass\n" * 60
    assert dict(function_lengths(ast.parse(source))) == {"short": 2, "long": 61}


def test_no_module_is_a_dumping_ground() -> None:
    assert {Path(path).stem for path in MODULES.values()} & NO_DUMPING_GROUNDS == set()
