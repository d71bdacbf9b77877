"""The tools of `make`: lanes side by side, and the range of Pythons and torches."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.engine import claims
from fsdp_migrate.versions import version_numbers
from tests.ranks import ROOT
from tests.time_limit import is_gone
from tools import run_frameworks, run_lanes, run_range


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize("said", ["FAILED tests/x.py::y", "ERROR tests/x.py", "tests/x.py:3: error: Name z"])
def test_lanes_run_side_by_side_and_failures_are_named_at_the_end(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = f"{PYTHON} -c 'print(\"{said}\"); exit(3)'"
    assert run_lanes.main([f"good={PYTHON} -c 'print(1)'", f"bad={fails}"]) == 1
    *shown, named, last = capsys.readouterr().out.splitlines()
    assert sorted(shown) == [f"[bad] {said}", "[good] 1"]
    assert named == f"[bad] {said}"
    assert last.endswith("failed: bad")


def test_what_the_summary_names_again_is_named_once_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["failed: tests/x.py::y[a - b]", "failed: tests/x.py::z", "FAILED tests/x.py::z - it is red"]
    script = shlex.quote(f"print(*{lines!r}, sep='\\n'); exit(1)")
    assert run_lanes.main([f"bad={PYTHON} -c {script}"]) == 1
    *_, first, second, last = capsys.readouterr().out.splitlines()
    assert [first, second] == ["[bad] failed: tests/x.py::y[a - b]", "[bad] FAILED tests/x.py::z - it is red"]
    assert last.endswith("failed: bad")


def test_a_lane_that_hangs_ends_with_all_that_it_has_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "hang.py"
    script.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "if len(sys.argv) > 1: subprocess.Popen([sys.executable, __file__], start_new_session=True)\n"
        f"else: pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    assert run_lanes.main(["--limit", "10", f"lane={PYTHON} {shlex.quote(str(script))} parent"]) == 1
    assert "[lane] ended after 10 s" in capsys.readouterr().out
    assert is_gone(int(pid.read_text()))


def test_the_range_is_the_one_that_the_package_declares() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    lower, upper = re.findall(r'"torch>=(\d\.\d+),<2\.(\d+)"', declared)[0]
    assert list(run_range.ENDS) == [f"torch-{lower}", f"torch-2.{int(upper) - 1}"]
    oldest = re.findall(r'requires-python = ">=(.*)"', declared)[0]
    assert run_range.PYTHONS[0] == oldest
    assert run_range.PYTHON_OF_ENDS in run_range.PYTHONS


def test_another_torch_is_installed_beside_the_pins_that_go_with_it() -> None:
    pins = (ROOT / "constraints" / "core.txt").read_text()
    assert run_range.pins_for(None) == pins
    others = run_range.pins_for("torch==2.6.*").splitlines()
    left_out = {line.partition("==")[0] for line in set(pins.splitlines()) - set(others)}
    assert left_out == run_range.UNPINNED
    assert [line for line in others if line.startswith("torch==")] == ["torch==2.6.*"]


def test_an_unknown_run_is_named() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "run_range.py", "2.7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No such run: 2.7; expected 3.10," in done.stderr


def test_a_python_that_does_not_start_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the commands are that pyenv puts on the PATH."""
    shims, home = tmp_path / "shims", tmp_path / "home"
    works = home / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3.12"
    for path, status in ((shims / "python3.12", 127), (works, 0)):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:/bin:/usr/bin")
    monkeypatch.setenv("HOME", str(home))
    assert run_range.find_python("3.12") == works
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_range.find_python("3.12") is None


def bounds() -> set[tuple[str, str]]:
    """Where claims begin and end to hold."""
    tables = {
        "accelerate": claims.ACCELERATE,
        "axolotl": claims.AXOLOTL,
        "lightning": claims.LIGHTNING,
        "mosaicml": claims.COMPOSER,
        "transformers": claims.TRANSFORMERS,
    }
    each = [(package, claim) for package, table in tables.items() for claim in table.values()]
    return {(package, bound) for package, claim in each for bound in (claim.since, claim.before) if bound}


def is_tried(package: str, bound: str) -> bool:
    """Tell whether the release of a bound is among those that are tried, and one of those right before it."""
    here, depth = version_numbers(bound), len(version_numbers(bound))
    names = [name.partition("==") for name in run_frameworks.VERSIONS]
    tried = [version_numbers(number)[:depth] for name, _, number in names if name == package and number]
    is_newest = package in run_frameworks.VERSIONS and here > max(tried, default=())
    before = (*here[:-1], here[-1] - 1)
    has_before = (
        before in tried if here[-1] else any(each < here and each[0] == here[0] - 1 for each in tried)
    )
    return has_before and (here in tried or is_newest)


def test_both_sides_of_what_is_claimed_of_versions_are_tried() -> None:
    untried = {bound for bound in bounds() if not is_tried(*bound)}
    assert untried == set(run_frameworks.UNTRIED)


@pytest.mark.parametrize(
    ("package", "bound", "expected"),
    [
        ("accelerate", "1.9", True),
        ("accelerate", "1.12", False),
        ("transformers", "5.0", True),
        ("lightning", "1.5", False),
    ],
)
def test_a_bound_counts_as_tried_with_the_releases_beside_it(
    package: str, bound: str, expected: bool
) -> None:
    assert is_tried(package, bound) is expected
