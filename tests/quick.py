"""``--quick``: only the tests that start no other process, and are not marked as slow or as S3's.

Of a test that is marked ``alike`` it runs the first and the last case. A file whose ``pytestmark`` leaves all
of it out is not imported. Which tests start a process is read from their code: the names that a test, its
fixtures and the helpers of the tests use. A test that starts one all the same fails there, and says so.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


STARTERS = {"run_ranks", "subprocess", "multiprocessing", "Popen", "fork", "getfixturevalue", "popen", "mp"}
EVENTS = {
    "tests.run_ranks",
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
}

LEFT_OUT = ("slow", "s3")
FEW = 20


def examples(count: int) -> int:
    """Return how many examples a test draws that wants ``count``."""
    return min(count, FEW) if settings.default is settings.get_profile("quick") else count


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only what takes a moment: no other process")


def pytest_configure(config: pytest.Config) -> None:
    """Let no test start a process, and draw fewer examples."""
    # No test asserts a time: other processes may hold the machine.
    settings.register_profile("all", deadline=None)
    settings.register_profile("quick", settings.get_profile("all"), max_examples=FEW)
    settings.load_profile("quick" if config.getoption("--quick") else "all")
    if config.getoption("--quick"):
        config.pluginmanager.register(_Quick(), "quick tests")


class _Quick:
    """Selects, and refuses what should not have been selected."""

    def __init__(self) -> None:
        self.running = ""
        self.names = LEFT_OUT if importlib.util.find_spec("composer") else (*LEFT_OUT, "composer")
        sys.addaudithook(self._refuse)

    def _refuse(self, event: str, _: object) -> None:
        if self.running and event in EVENTS:
            msg = f"{self.running} starts a process ({event}), which tests/quick.py did not see in its code."
            raise RuntimeError(msg)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        # Each process imports every file: those that bring transformers, or ranks' bodies, cost seconds.
        return True if is_all(collection_path, *self.names) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known: dict[CodeType, bool] = {}
        left_out = {
            item
            for item in items
            if any(map(item.get_closest_marker, LEFT_OUT)) or starts_processes(item, known)
        }
        for _, cases in itertools.groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
            left_out.update(case for case in list(cases)[1:-1] if case.get_closest_marker("alike"))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.running = item.nodeid
        try:
            return (yield)
        finally:
            self.running = ""


def is_all(path: Path, *markers: str) -> bool:
    """Tell whether a path is a file of tests whose ``pytestmark`` gives all of them one of the markers."""
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        return False
    pattern = rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(markers)})\b"
    return re.search(pattern, path.read_text(), re.MULTILINE) is not None


def starts_processes(item: pytest.Item, known: dict[CodeType, bool]) -> bool:
    """Tell whether a test, one of its fixtures or a helper that they call starts processes."""
    if not isinstance(item, pytest.Function):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(each.func for several in definitions for each in several)]
    return any(_starts(inspect.unwrap(function), known) for function in functions)


def _starts(function: object, known: dict[CodeType, bool]) -> bool:
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    if code not in known:
        known[code] = False  # for those that call themselves
        names = set(_names(code))
        found = (inspect.unwrap(function.__globals__[n]) for n in names if n in function.__globals__)
        helpers = [each for each in found if _is_ours(each, function)]
        inner = (each for helper in helpers for each in _inside(helper, names))
        known[code] = not names.isdisjoint(STARTERS) or any(
            _starts(each, known) for each in (*helpers, *inner)
        )
    return known[code]


def _inside(helper: object, names: set[str]) -> Iterator[object]:
    """Yield the functions that a module has under some names, and all of a class or of an object's class."""
    if isinstance(helper, ModuleType):
        yield from (inspect.unwrap(each) for name, each in vars(helper).items() if name in names)
    elif not isinstance(helper, FunctionType):
        for each in vars(helper if isinstance(helper, type) else type(helper)).values():
            # Methods themselves, those of classes, and what makes properties and cached ones.
            yield from (each, *(getattr(each, name, None) for name in ("__func__", "fget", "func")))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_ours(value: object, function: FunctionType) -> bool:
    """Tell whether something is of the tests: of the same file, or of a helper of theirs."""
    if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
        return True
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return name == function.__module__ or str(name).startswith(("tests.", "tools."))
