"""The public names: few, sorted, documented, and the same when they are loaded lazily."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import pydoc
import re
import warnings

import pytest

import fsdp_migrate
from fsdp_migrate.torch_compat.cpu_mends import mend_fsdp2_on_cpu
from tests.architecture import package_modules
from tests.ranks import ROOT


MODULES = package_modules()
HAVE_EXAMPLES = {
    name for name, path in MODULES.items() if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
}
OBJECTS = [name for name in fsdp_migrate.__all__ if name != "__version__"]
EXAMPLES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NEED_COMPOSER = {"fsdp_migrate.adapters.composer_callback", "fsdp_migrate.adapters.composer_trainer.hooks"}
HAS_COMPOSER = importlib.util.find_spec("composer") is not None
NOT_IMPORTED = {"fsdp_migrate.__main__", *(() if HAS_COMPOSER else NEED_COMPOSER)}
SLOW = {
    "fsdp_migrate.parity.script_runs",
    "fsdp_migrate.source.tracked",
    "fsdp_migrate.forecast.foretell",
    "fsdp_migrate.microbatch.search",
}


def test_names_are_few_and_sorted() -> None:
    assert fsdp_migrate.__all__ == sorted(fsdp_migrate.__all__)
    assert len(fsdp_migrate.__all__) <= 23


@pytest.mark.parametrize("name", OBJECTS)
def test_every_name_is_documented(name: str) -> None:
    value = getattr(fsdp_migrate, name)
    assert inspect.getdoc(value)
    assert getattr(value, "__module__", "").startswith("fsdp_migrate.")


@pytest.mark.parametrize("name", [name for name in OBJECTS if name.islower()])
def test_functions_tell_their_arguments_and_errors(name: str) -> None:
    value = getattr(fsdp_migrate, name)
    text = inspect.getdoc(value) or ""
    assert "Raises:" in text
    parameters = list(inspect.signature(value).parameters)
    if len(parameters) > 1:
        assert [parameter for parameter in parameters if f"    {parameter}: " not in text] == []


def test_dir_and_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(MODULES["fsdp_migrate"].read_text())
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert typed | {"__version__"} == set(fsdp_migrate.__all__)
    assert set(fsdp_migrate.__all__) <= set(dir(fsdp_migrate))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = fsdp_migrate.no_such_name


def test_every_module_can_be_imported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(set(MODULES) - NOT_IMPORTED):
            importlib.import_module(name)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in sorted(HAVE_EXAMPLES - NOT_IMPORTED)],
)
def test_examples_in_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    mend_fsdp2_on_cpu("cpu")  # torch 2.6's own FSDP2 does not run forward there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = doctest.testmod(importlib.import_module(name), optionflags=EXAMPLES)
    assert done.attempted
    assert not done.failed


def test_help_begins_with_the_functions() -> None:
    """What somebody types who knows the package's name alone, in torch's absence too."""
    described = (fsdp_migrate.__doc__ or "").split("\n\n")[1]
    names = [line.strip().split("  ")[0] for line in described.splitlines()]
    listed = [name for each in names for name in each.split(", ")]
    assert listed[0] == "prepare_fully_shard"
    assert all(callable(getattr(fsdp_migrate, name)) for name in listed)
    shown = pydoc.plain(pydoc.render_doc(fsdp_migrate))
    assert shown.index("prepare_fully_shard") < shown.index("PACKAGE CONTENTS")
