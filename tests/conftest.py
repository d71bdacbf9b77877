from __future__ import annotations

import getpass
import importlib.util
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests import quick, time_limit


_LONGEST: Final = 64
"""Of the path of a folder for temporary files: a socket's has at most 107 characters, of them 32 in it."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(time_limit, "time_limit")
    pluginmanager.register(quick, "quick")
    parser.addoption(
        "--require-composer",
        action="store_true",
        help="fail, rather than skip, the tests marked `composer` where mosaicml is not installed",
    )
    parser.addoption(
        "--require-s3",
        action="store_true",
        help="fail, rather than skip, the tests marked `s3` where s3fs or moto is not installed",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return for `-n auto` as many processes as there are cores, and one more for the core lane.

    The lanes run side by side, and many tests wait for other processes; the core lane has more of them.
    Quick tests wait for nothing, and one more process would import all of them once more.
    """
    is_core_lane = not (config.getoption("--require-composer") or config.getoption("--quick"))
    return (os.cpu_count() or 1) + is_core_lane


def pytest_configure() -> None:
    """Take SIGINT, which `make test &` ignores: processes that tests interrupt would inherit that.

    And give each process one thread for torch's kernels.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Before torch is loaded: processes of tests share the cores, and more threads would wait for one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # readline, which pytest imports, sets these for processes that are started from here.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let this process and those that it starts put temporary files where pytest removes them.

    Processes that a test kills leave theirs: torchrun, readers of checkpoints, queues. Of compiled code each
    session would find nothing there, so that stays where it was.
    """
    folder = tmp_path_factory.mktemp("t")
    # In a session of pytest that a test starts the path may be too long for a socket in it: its is in the
    # folder of the outer one then.
    if len(os.fsencode(folder)) <= _LONGEST:
        compiled = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare the Composer lane the import of files of which the core lane runs all: some 300 of them."""
    if config.getoption("--require-composer") and quick.is_all(collection_path, "any_torch"):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what cannot run here, each with its reason, and leave out what the other lane runs."""
    if config.getoption("--require-composer"):
        left_out = [item for item in items if item.get_closest_marker("any_torch")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("any_torch")]
    skips = {}
    if importlib.util.find_spec("composer") is None:
        if config.getoption("--require-composer"):
            raise pytest.UsageError("`--require-composer` was given, and mosaicml is not installed.")
        skips["composer"] = "needs mosaicml: run `make test-composer`"
    if any(importlib.util.find_spec(name) is None for name in ("s3fs", "moto")):
        if config.getoption("--require-s3"):
            raise pytest.UsageError("`--require-s3` was given, and s3fs or moto is not installed.")
        skips["s3"] = "needs s3fs and moto: run `make test-core`"
    # Not above: a process that only gives out tests need not load it.
    import torch

    if not torch.cuda.is_available():
        skips["gpu"] = "needs a CUDA device, and there is none here"
    for item in items:
        for marker, reason in skips.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
