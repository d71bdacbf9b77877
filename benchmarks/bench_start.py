"""What `--help` and `config` take, against importing the libraries that they need; paired in one run.

The config lies in a project of 24 sources, which `config` reads for what decides how it is turned.

python benchmarks/bench_start.py [--rounds 15]

Processor time, which other work on the machine inflates less than the wall time. Exits with 1 where the
median of the rounds' ratios is above the bound.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.scan_sources import write_sources


ROOT = Path(__file__).resolve().parent.parent
MAIN = "from fsdp_migrate.cli import main; main"
LIBRARIES = "import typer, typer.rich_utils, rich.console, rich.table"
WAYS = {
    "--help": (f"{MAIN}(['--help'])", LIBRARIES, 1.6),
    "config": (
        f"{MAIN}(['config', {{config!r}}])",
        f"{LIBRARIES}, pydantic, ruamel.yaml",
        2.2,
    ),
}


def seconds(code: str) -> float:
    """Return the processor time of a new interpreter that runs the code."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"`{code}` ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        return _measure(_write_project(Path(folder)), options.rounds)


def _write_project(folder: Path) -> Path:
    """Write a project and return its config."""
    write_sources(folder, 24)
    (folder / "requirements.txt").write_text("accelerate\n")
    return Path(shutil.copy(ROOT / "examples" / "configs" / "accelerate.yaml", folder))


def _measure(config: Path, rounds: int) -> int:
    missed = False
    for name, (code, libraries, bound) in WAYS.items():
        command = code.format(config=str(config))
        pairs = [(seconds(command), seconds(libraries)) for _ in range(rounds)]
        ratio = statistics.median(one / other for one, other in pairs)
        ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"{name}: {ours:.2f} s; its libraries alone {theirs:.2f} s; ratio {ratio:.2f} (bound {bound})")
        missed = missed or ratio > bound
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
