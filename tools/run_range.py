"""Run the core lane's tests on every Python that is installed, and on the oldest and the newest torch.

    python tools/run_range.py [NAME ...]

Names are such as `3.12` (that Python, with the torch that constraints/core.txt pins) and `torch-2.6` (that
torch, on Python 3.11); without names all are run, one after the other. Each has a venv of its own under
build/range, which is deleted again, and a log beside it. Exits with 1 if tests failed, or if a Python that
was asked for is not here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "range"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ENDS = {"torch-2.6": "torch==2.6.*", "torch-2.15": "torch==2.15.*"}
"""The ends of the range that pyproject.toml declares; a test holds them to it."""
PYTHON_OF_ENDS = "3.11"
UNPINNED = {"torch", "sympy", "cfn-lint"}
"""torch 2.6 goes with one sympy only, and moto's cfn-lint with newer ones, unless it is older itself."""


@dataclass(frozen=True)
class Run:
    """One installation and its tests."""

    name: str
    python: Path
    torch: str | None

    @property
    def log(self) -> Path:
        """Where its installation and its tests say what they have to say."""
        return FOLDER / f"{self.name}.log"


def main(names: list[str]) -> int:
    """Run what is asked for, and print a line for each; return the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = {version: find_python(version) for version in PYTHONS}
    unknown = set(names) - {*PYTHONS, *ENDS}
    if unknown:
        sys.exit(f"No such run: {', '.join(sorted(unknown))}; expected {', '.join([*PYTHONS, *ENDS])}.")
    passed = True
    for name in names or [*PYTHONS, *ENDS]:
        python = known[PYTHON_OF_ENDS if name in ENDS else name]
        if python is None:
            print(f"{name}: no such Python is installed", flush=True)
            passed = passed and not names
        else:
            passed = run(Run(name, python, ENDS.get(name))) and passed
    return 0 if passed else 1


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version that starts: on the PATH, or one of pyenv's.

    pyenv puts a command of each Python on the PATH that fails where the Python is not switched on.
    """
    found = shutil.which(f"python{version}")
    others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True)
    for path in (*([Path(found)] if found else []), *others):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def run(what: Run) -> bool:
    """Install, test, say what came of it, and delete the installation."""
    start, venv = time.monotonic(), FOLDER / what.name
    shutil.rmtree(venv, ignore_errors=True)
    try:
        with what.log.open("w") as log:
            said = "not installed"
            if install(what, venv, log):
                said = test(venv, log)
    finally:
        shutil.rmtree(venv, ignore_errors=True)
    print(f"{what.name}: {said}; {time.monotonic() - start:.0f} s; {what.log.relative_to(ROOT)}", flush=True)
    return " passed" in said and not re.search(r"\d (failed|error)", said)


def install(what: Run, venv: Path, log: IO[str]) -> bool:
    """Make the venv, with the pins of the core lane."""
    constraints = FOLDER / f"{what.name}.txt"
    constraints.write_text(pins_for(what.torch))
    commands = [
        [str(what.python), "-m", "venv", str(venv)],
        [str(venv / "bin" / "pip"), "install", "-qq", "-e", ".[dev,dev-s3]"],
    ]
    # In place of any constraint that the machine has for all its users.
    environment = os.environ | {"PIP_CONSTRAINT": str(constraints)}
    return all(
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False).returncode
        == 0
        for command in commands
    )


def pins_for(torch: str | None) -> str:
    """Return the core lane's pins; with another torch, without those that it may not go with."""
    pins = (ROOT / "constraints" / "core.txt").read_text()
    if torch is None:
        return pins
    kept = [pin for pin in pins.splitlines() if pin.partition("==")[0] not in UNPINNED]
    return "\n".join([torch, *kept, ""])


def test(venv: Path, log: IO[str]) -> str:
    """Run the tests; return the last line that pytest says, with the torch that they ran on."""
    python = str(venv / "bin" / "python")
    torch = [python, "-c", "import torch; print(torch.__version__)"]
    version = subprocess.run(torch, capture_output=True, text=True, check=False).stdout.strip()
    command = [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "--require-s3"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    log.write(done.stdout)
    return f"torch {version}: {done.stdout.strip().splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
