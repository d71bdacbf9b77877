"""``--quick`` leaves out what starts a process, and says so where it did not see it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.conftest import pytest_ignore_collect
from tests.quick import is_all
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TESTS = """
import os, subprocess, sys
import pytest
from tests.ranks import run_ranks

def helper():
    return lambda: subprocess.run([sys.executable, "-c", ""])

@pytest.fixture
def ranks():
    run_ranks(print)

class Runs:
    def of(self): return run_ranks(print)

RUNS = Runs()

def test_nothing(): pass
@pytest.mark.alike
@pytest.mark.parametrize("case", range(9))
def test_alike(case): assert case in (0, 8)
def test_of_an_object(): RUNS.of()
def test_of_a_class(): Runs().of()
def test_itself(): subprocess.run([sys.executable, "-c", ""])
def test_helper(): helper()()
def test_fixture(ranks): pass
def test_hidden(): getattr(os, "sys" + "tem")("true")
"""


def test_what_starts_a_process_is_left_out_or_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_slow.py").write_text(
        "import pytest\npytestmark = [pytest.mark.slow]\n1 / 0  # is not run\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.quick", "-p", "no:cacheprovider", "-c"]
    done = subprocess.run(
        [*command, "/dev/null", "--rootdir", str(tmp_path), "--quick", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert "1 failed, 3 passed, 12 deselected" in done.stdout
    assert "test_hidden starts a process (os.system)" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("test_it.py", "pytestmark = pytest.mark.any_torch\n", True),
        ("test_it.py", "pytestmark = [pytest.mark.slow, pytest.mark.any_torch]\n", True),
        ("test_it.py", "pytestmark = pytest.mark.any_torch_but_one\n", False),
        ("test_it.py", "pytestmark = pytest.mark.slow\n", False),
        # One test of a file, or a module that others import from.
        ("test_it.py", "@pytest.mark.any_torch\ndef test_one(): pass\n", False),
        ("conftest.py", "pytestmark = pytest.mark.any_torch\n", False),
        ("test_it.txt", "pytestmark = pytest.mark.any_torch\n", False),
    ],
)
def test_a_file_is_left_out_only_where_all_of_it_is_marked(
    name: str, text: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert is_all(tmp_path / name, "any_torch") == expected


@pytest.mark.parametrize("option", [True, False])
def test_the_composer_lane_does_not_import_what_the_core_lane_runs(option: bool, tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text("pytestmark = pytest.mark.any_torch\n")
    (tmp_path / "test_one.py").write_text("@pytest.mark.any_torch\ndef test_one(): pass\n")
    asked = SimpleNamespace(getoption=lambda name: option and name == "--require-composer")
    found = [
        pytest_ignore_collect(tmp_path / name, cast("pytest.Config", asked))
        for name in ("test_all.py", "test_one.py")
    ]
    assert found == [True if option else None, None]
