"""Holds the layout of the packages: who may import whom, and what stays in one place."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.architecture import (
    all_imports,
    function_lengths,
    package_imports,
    package_modules,
    package_trees,
    runtime_imports,
    torch_privates,
)
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    House: TypeAlias = "str | tuple[House, ...] | list[House]"

pytestmark = pytest.mark.any_torch

PYPROJECT = (ROOT / "pyproject.toml").read_text()
Place = tuple[tuple[int, int], ...]

MODULES = package_modules()

# Every package, and every module that is in none, by its name below `fsdp_migrate`, from the ground up. In a
# tuple each may import what stands in an earlier line, and nothing else, be it for types only; in a list they
# stand side by side, and do not see each other. A package holds what is below it and has no line of its own.
HOUSE: House = (
    "adapters.__init__",
    "finding_code",
    "checkpoint_codes",
    "finding_codes",
    "errors findings",  # an error holds findings, and raising them is one
    "older_syntax plain_assigns",
    "arguments left_comments newer_syntax versions visible",
    [
        "explanations",
        (
            ["text_files", "words"],
            "config",
            "mapping",
            ["adapters.config_objects", "adapters.document"],
            "adapters.engine",
            [
                "adapters.accelerate",
                "adapters.composer",
                "adapters.lightning",
                "adapters.torch_kwargs",
                (
                    "adapters.hf_environment",
                    "adapters.hf_offload",
                    "adapters.hf_versions",
                    "adapters.hf_words",
                    "adapters.hf_trainer",
                    "adapters.axolotl",
                ),
            ],
            "adapters.conversion",
            "config_texts",
            "config_files",
            "config_notes",
            ["source.catalog", "source.uses"],
            "source.python",
            [
                "source.always_bound",
                "source.answers",
                "source.assigned_names",
                "source.collective_words",
                "source.fsdp2_models",
                "source.lists_of_lists",
                "source.loaded_elsewhere",
                "source.parts_of_objects",
                "source.passes_elsewhere",
                "source.sharded_parts",
                "source.tensor_parts",
                "source.values_of_wholes",
                "source.whole_states",
            ],
            [
                "source.asking_functions",
                "source.called_methods",
                "source.runs_elsewhere",
                "source.check_functions",
                "source.compiled_names",
                "source.early_optimizers",
                "source.fails_at_once",
                "source.flat_parameters",
                "source.free_of_parts",
                "source.ignored_states",
                "source.initialising",
                "source.kept_lists",
                "source.kept_parameters",
                "source.lightning_checks",
                "source.lightning_heirs",
                "source.lightning_modules",
                "source.lightning_names",
                "source.lightning_numbers",
                "source.lightning_otherwise",
                "source.lightning_prefix",
                "source.lightning_words",
                "source.lightning_wrappers",
                "source.local_numbers",
                "source.looked_up",
                "source.method_calls",
                "source.optimizer_bases",
                "source.parameter_values",
                "source.own_forwards",
                "source.private_values",
                "source.set_layers",
                "source.settings_in_python",
                "source.unless_wrapped",
                "source.wrapped_twice",
            ],
            [
                (
                    ["source.as_before", "source.between_passes", "source.plain_tensors"],
                    "source.dtensor_hints",
                    "source.indexed_rows",
                ),
                "source.copied_parameters",
                "source.counted_units",
                "source.copies_of_ranks",
                "source.counts_of_gradients",
                "source.norms_by_hand",
                "source.counts_of_models",
                "source.cut_by_sizes",
                "source.framework_words",
                "source.hf_left",
                "source.kept_averages",
                "source.kept_in_classes",
                "source.kept_of_contexts",
                "source.made_of_gradients",
                "source.no_dimensions",
                "source.plain_models",
                "source.plugin_attributes",
                "source.plugin_precision",
                "source.unknown_gradients",
                "source.units_of_parts",
                "source.waiting_gradients",
            ],
            [
                "source.asked_for_inner",
                "source.asked_states",
                "source.children_of_wrappers",
                "source.handing_on",
                "source.names_from_outside",
                "source.other_objects",
                "source.plain_copies",
                "source.states_by_name",
                "source.given_with_model",
                "source.stepped_lists",
                "source.unknown_wrappers",
            ],
            ["source.kept_before", "source.model_runs", "source.sharded_classes", "source.wrapped_classes"],
            ["source.trained_models", "source.writes_elsewhere"],
            "source.written_elsewhere",
            "source.rules",
            "source.still_fsdp1",
            "source",
        ),
        (
            ["checkpoint_convert.manifest", "checkpoint_convert.storage"],
            "checkpoint_convert.formats",
            [
                "checkpoint_convert.maps",
                "checkpoint_convert.outputs",
                "checkpoint_convert.sources",
                "checkpoint_convert.targets",
            ],
            "checkpoint_convert.planning",
            ["checkpoint_convert.execution", "checkpoint_convert.verification"],
            "checkpoint_convert.loading",
            "checkpoint_convert.inspect",
            "checkpoint_convert.convert",
            "checkpoint_convert.__init__",
        ),
        "torch_compat",
        "factories launch",
    ],
    [
        "sharding",
        (
            "source.apart_steps source.argument_files source.checkpoint_outlooks source.checkpoint_readers "
            "source.checkpoint_runs source.copied_trainers source.ended_groups source.found_models "
            "source.precision_elsewhere source.proof_steps source.publishing source.saved_files "
            "source.sarif source.steps source.surroundings source.training_scripts"
        ),
    ],
    ["activation_checkpointing", "microbatch", "runtime", "tensor_parallel"],
    "loading",
    ["doctor", ("parity", "forecast")],
    "__init__",
    [("adapters.composer_trainer", "adapters.composer_callback"), "demo"],
    ["cli.document", "cli.torchrun", "cli.typed", "report"],
    "cli.render",
    "cli.pages",
    "cli",
    "__main__",
)
MAX_FILE = 500
MAX_FUNCTION = 60
NO_DUMPING_GROUNDS = {"utils", "types", "constants", "helpers", "common", "misc"}


def places(house: House, above: Place = ()) -> Iterator[tuple[str, Place]]:
    """Yield each part with its place: its floor and the room there, and the same within a room of floors."""
    if isinstance(house, str):
        yield from ((name, above) for name in house.split())
        return
    for floor, rooms in enumerate(house):
        for room, inner in enumerate(rooms if isinstance(rooms, list) else [rooms]):
            yield from places(inner, (*above, (floor, room)))


PLACES = dict(places(HOUSE))


@functools.cache
def part_of(module: str) -> str | None:
    """Return the part of the house that a module is in."""
    name = module.removeprefix("fsdp_migrate").lstrip(".")
    as_init = f"{name}.__init__".lstrip(".")
    if as_init in PLACES:
        return as_init
    above = [part for part in PLACES if name == part or name.startswith(f"{part}.")]
    return max(above, key=len, default=None)


def module_of(imported: str) -> str:
    """Return the module of this package that is imported, or of which a name is."""
    while imported not in MODULES:
        imported = imported.rpartition(".")[0]
    return imported


def is_ours(imported: str) -> bool:
    return imported.split(".", maxsplit=1)[0] == "fsdp_migrate"


def violations(name: str, tree: ast.Module) -> list[str]:
    """Return what a module imports from its own floor, or from a higher one."""
    own = part_of(name)
    assert own is not None, f"{name} has no place in HOUSE"
    found = []
    for imported in filter(is_ours, all_imports(tree)):
        part = part_of(module_of(imported))
        if part is not None and not _is_below(PLACES[part], PLACES[own]):
            found.append(f"{name} imports {imported}")
    return found


def _is_below(place: Place, own: Place) -> bool:
    """Tell whether a place is a lower one, or the same."""
    for (floor, room), (own_floor, own_room) in zip(place, own, strict=False):
        if (floor, room) != (own_floor, own_room):
            return floor < own_floor
    return place == own


def test_every_module_has_a_place() -> None:
    parts = {name: part_of(name) for name in MODULES}
    assert [name for name, part in parts.items() if part is None] == []
    assert PLACES.keys() - set(parts.values()) == set()
    assert len(PLACES) == len(list(places(HOUSE)))


def test_imports_point_downwards() -> None:
    assert [text for name, tree in package_trees().items() for text in violations(name, tree)] == []


def test_no_module_comes_to_import_itself() -> None:
    graph = {
        name: {module_of(found) for found, _ in imports if is_ours(found)}
        for name, imports in package_imports().items()
    }
    assert [name for name in graph if name in reachable(graph, name)] == []


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return everything that ``start`` comes to import, directly or not."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


@pytest.mark.parametrize(
    ("name", "source", "is_wrong"),
    [
        (
            "checkpoint_convert.formats.zip_reader",
            "from {}.checkpoint_convert.storage.folders import x",
            False,
        ),
        ("checkpoint_convert.formats.dcp_items", "from {}.checkpoint_convert.sources.dcp import x", True),
        ("checkpoint_convert.formats.dcp_items", "from {}.checkpoint_convert.formats.cast import x", False),
        ("checkpoint_convert.manifest.keys", "from {}.checkpoint_convert.storage import folders", True),
        ("checkpoint_convert.planning.plan", "from {}.checkpoint_convert.execution import execute", True),
        ("checkpoint_convert.sources.dcp", "def f():\n    import {}.checkpoint_convert.targets.base", True),
        ("checkpoint_convert.sources.dcp", "from {}.checkpoint_convert import Manifest", True),
        ("checkpoint_convert.convert", "from {}.checkpoint_convert.inspect import x", False),
        ("checkpoint_convert.inspect", "from {}.checkpoint_convert.convert import x", True),
        ("checkpoint_convert.inspect", "from {} import config", True),
        ("checkpoint_convert.inspect", "from {}.findings import Finding", False),
        ("config", "from {}.sharding.prepare import x", True),
        ("config", "if TYPE_CHECKING:\n    from {}.sharding.plan import x", True),
        ("errors", "from {} import findings", False),
        ("adapters.accelerate", "from {}.adapters.lightning import x", True),
        ("adapters.accelerate", "from {}.checkpoint_convert.manifest import keys", True),
        ("adapters.accelerate", "from {}.sharding.plan import x", True),
        ("adapters.axolotl", "from {}.adapters.hf_trainer import x", False),
        ("adapters.engine.base", "from {}.adapters.composer_callback import x", True),
        ("adapters.composer_trainer.sharding", "from {}.sharding.prepare import x", False),
        ("sharding.plan", "from {}.checkpoint_convert import Manifest", False),
        ("sharding.plan", "import {}.cli", True),
        ("source.python.text", "from {}.source.rules import clipping", True),
        ("source.python.text", "import torch", False),
        ("cli.render.demo", "from {}.cli.app import app", True),
        ("cli.app", "from {} import __version__", False),
    ],
)
def test_the_check_of_imports_can_fail(name: str, source: str, is_wrong: bool) -> None:
    tree = ast.parse(source.format("fsdp_migrate"))
    assert bool(violations(f"fsdp_migrate.{name}", tree)) == is_wrong


@pytest.mark.parametrize("name", ["new", "adapters.new", "checkpoint_convert.new", "new.module"])
def test_a_new_module_or_package_needs_a_place(name: str) -> None:
    assert part_of(f"fsdp_migrate.{name}") is None


def test_imports_are_absolute() -> None:
    relative = [
        (name, imported)
        for name, imports in package_imports().items()
        for imported, level in imports
        if level
    ]
    assert relative == []


def test_relative_imports_are_seen() -> None:
    assert list(runtime_imports(ast.parse("from . import x"))) == [(".x", 1)]


def importers(*packages: str) -> set[str]:
    """Return the modules that import one of some packages when they run."""
    return {
        name
        for name, imports in package_imports().items()
        if any(module.split(".")[0] in packages for module, _ in imports)
    }


def test_only_the_cli_imports_rich_and_typer() -> None:
    found = importers("rich", "typer", "click")
    assert [name for name in found if not name.startswith("fsdp_migrate.cli")] == []


def test_only_the_callback_imports_composer() -> None:
    assert importers("composer") == {
        "fsdp_migrate.adapters.composer_callback",
        "fsdp_migrate.adapters.composer_trainer.hooks",
    }


def test_torch_privates_stay_in_torch_compat() -> None:
    outside = {name: tree for name, tree in package_trees().items() if ".torch_compat" not in name}
    assert [(name, found) for name, tree in outside.items() for found in torch_privates(tree)] == []


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


def test_files_and_functions_stay_short() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE} == {}
    functions = ((name, *found) for name, tree in package_trees().items() for found in function_lengths(tree))
    assert [found for found in functions if found[-1] > MAX_FUNCTION] == []


def test_the_check_for_lengths_can_fail() -> None:
    source = "def short():\n    'text\\\n    more'\n    pass\n\ndef long():\n" + "    pass\n" * 60
    assert dict(function_lengths(ast.parse(source))) == {"short": 2, "long": 61}


def slow_patterns(tree: ast.AST) -> list[str]:
    """Return the patterns that go over all blank lines from each of them."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and re.search(r"\^\(*(?:\?:)?\\s[*+]", text)]


def test_no_pattern_begins_a_line_with_blank_lines() -> None:
    assert {name: found for name, tree in package_trees().items() if (found := slow_patterns(tree))} == {}


@pytest.mark.parametrize("begin", ["^", "^(", "(?:^", "x|^"])
def test_the_check_for_slow_patterns_can_fail(begin: str) -> None:
    source = f're.compile(r"{begin}\\s*import", re.MULTILINE)'
    assert slow_patterns(ast.parse(source))
    assert not slow_patterns(ast.parse(source.replace("\\s", "[ \\t]")))


def test_no_module_is_a_dumping_ground() -> None:
    assert {Path(path).stem for path in MODULES.values()} & NO_DUMPING_GROUNDS == set()


def test_every_module_is_documented() -> None:
    undocumented = [
        (name, getattr(node, "name", "the module"))
        for name, tree in package_trees().items()
        for node in (tree, *tree.body)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]
    assert undocumented == []


def place_of_test(path: Path) -> Path:
    """Return where the test of a module is looked for first."""
    top, *folders = path.relative_to(ROOT).parts[:-1]
    above = {"fsdp_migrate": (), "adapters": ("adapters",), "checkpoint_convert": ("checkpoint",)}[top]
    return ROOT.joinpath("tests", *above, *folders, f"test_{path.name}")


def test_the_test_of_a_module_is_found_by_its_name() -> None:
    """Not of every one yet: the share may rise, and whoever raises it writes it here."""
    modules = [path for path in MODULES.values() if path.name != "__init__.py"]
    assert place_of_test(ROOT / "checkpoint_convert/sources/per_rank.py").exists()
    found = sum(place_of_test(path).exists() for path in modules)
    assert found / len(modules) >= 0.56, f"{found} of {len(modules)}"


def test_what_pip_installs_holds_every_package() -> None:
    """An installation in place, as the tests run in, has all of them whatever the list says."""
    listed = re.search(r"\[tool\.setuptools\]\npackages = \[(.*?)\]", PYPROJECT, re.DOTALL)
    assert listed is not None
    folders = (
        path.parent.relative_to(ROOT)
        for top in ("fsdp_migrate", "adapters", "checkpoint_convert")
        for path in (ROOT / top).rglob("__init__.py")
    )
    names = (".".join(folder.parts) for folder in folders)
    expected = {name if name.startswith("fsdp_migrate") else f"fsdp_migrate.{name}" for name in names}
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == expected
