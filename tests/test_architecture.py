"""Holds the layout of the packages: who may import whom, and what stays in one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture import (
    function_lengths,
    package_modules,
    runtime_imports,
    torch_privates,
)


pytestmark = pytest.mark.any_torch


MODULES = package_modules()

# From the bottom up: none of these may come to import, by whatever way, what stands in a later line.
LAYERS = (
    {"errors", "findings", "config", "torch_compat"},
    {"mapping", "wrap", "tying", "resolve"},
    {"plan"},
    {"prepare"},
    {"demo", "cli", "__main__"},
)
# What the subpackages may import besides themselves.
ALLOWED = {
    "checkpoint_convert": {"errors", "findings"},
    "adapters": {"config", "errors", "findings", "mapping", "words"},
}
TOP = {"cli", "__main__"}
# The callback for Composer's Trainer runs the others: it stands beside the adapters, and above `prepare`.
PLUGIN = {
    f"fsdp_migrate.adapters.composer_{name}"
    for name in (
        "callback",
        "hooks",
        "microbatches",
        "sharding",
        "checkpoints",
        "sources",
        "cache",
        "evaluation",
    )
}
MAX_FILE = 500
MAX_FUNCTION = 60
NO_DUMPING_GROUNDS = {"utils", "types", "constants", "helpers", "common", "misc"}


Graph = Mapping[str, set[str]]


def part_of(name: str) -> str:
    """Return the part of the package that ``name`` is in: a module at the top, or a subpackage."""
    if any(name == module or name.startswith(f"{module}.") for module in PLUGIN):
        return "composer_plugin"
    return name.split(".")[1] if "." in name else ""


def imported_parts(tree: ast.Module) -> set[str]:
    """Return the parts of this package that the code imports when it runs."""
    names = {name for name, _ in runtime_imports(tree)}
    return {part_of(name) for name in names if name.startswith("fsdp_migrate.")}


def import_graph() -> Graph:
    """Return what each part of the package imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        part = part_of(name)
        if part:  # the package itself imports nothing when it is loaded
            graph[part] |= imported_parts(ast.parse(path.read_text())) - {part}
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """Return everything that ``start`` comes to import, directly or not."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def violations(graph: Graph) -> list[str]:
    """Return every import that points the wrong way."""
    found = [f"{part} imports itself" for part in graph if part in reachable(graph, part)]
    for part, imported in graph.items():
        found += [f"{part} imports {other}" for other in imported & TOP if part not in TOP]
        if part in ALLOWED:
            found += [f"{part} imports {other}" for other in imported - ALLOWED[part]]
    for level, layer in enumerate(LAYERS):
        above = set().union(*LAYERS[level + 1 :])
        for part in layer - TOP:
            found += [f"{part} comes to import {other}" for other in reachable(graph, part) & above]
    return sorted(found)


def test_imports_point_one_way() -> None:
    graph = import_graph()
    assert {"errors", "plan", "cli", "checkpoint_convert"} <= set(graph)
    assert violations(graph) == []


def test_imports_are_absolute() -> None:
    relative = {
        name: [imported for imported, level in runtime_imports(ast.parse(path.read_text())) if level]
        for name, path in MODULES.items()
    }
    assert {name: found for name, found in relative.items() if found} == {}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"plan": {"config"}, "prepare": {"plan", "new"}, "new": {"wrap"}, "cli": {"prepare"}}, []),
        ({"config": {"prepare"}}, ["config comes to import prepare"]),
        ({"config": {"new"}, "new": {"plan"}}, ["config comes to import plan"]),
        ({"new": {"cli"}}, ["new imports cli"]),
        ({"new": {"newer"}, "newer": {"new"}}, ["new imports itself", "newer imports itself"]),
        ({"adapters": {"mapping", "plan"}}, ["adapters imports plan"]),
        ({"adapters": {"composer_plugin"}}, ["adapters imports composer_plugin"]),
        ({"checkpoint_convert": {"errors", "config"}}, ["checkpoint_convert imports config"]),
    ],
)
def test_the_check_of_imports_can_fail(graph: Graph, expected: list[str]) -> None:
    assert violations(graph) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from fsdp_migrate.prepare import x", {"prepare"}),
        ("from fsdp_migrate import words", {"words"}),
        ("def f():\n    import fsdp_migrate.cli", {"cli"}),
        ("if TYPE_CHECKING:\n    from fsdp_migrate.plan import x", set()),
        ("import torch", set()),
    ],
)
def test_imports_are_found(source: str, expected: set[str]) -> None:
    assert imported_parts(ast.parse(source)) == expected


def test_relative_imports_are_seen() -> None:
    assert list(runtime_imports(ast.parse("from . import x"))) == [(".x", 1)]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_cli_imports_rich_and_typer(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    found = {module.split(".")[0] for module, _ in runtime_imports(tree)} & {"rich", "typer", "click"}
    assert not found or name.startswith("fsdp_migrate.cli")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_callback_imports_composer(name: str) -> None:
    imported = {module.split(".")[0] for module, _ in runtime_imports(ast.parse(MODULES[name].read_text()))}
    if name not in {"fsdp_migrate.adapters.composer_callback", "fsdp_migrate.adapters.composer_hooks"}:
        assert "composer" not in imported


@pytest.mark.parametrize("name", sorted(MODULES))
def test_torch_privates_stay_in_torch_compat(name: str) -> None:
    if not name.startswith("fsdp_migrate.torch_compat"):
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
