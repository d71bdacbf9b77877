"""What `--help` and `config` take, against importing the libraries that they need; paired in one run.

python benchmarks/bench_start.py [--rounds 15]

Processor time, which other work on the machine inflates less than the wall time. Exits with 1 where the
median of the rounds' ratios is above the bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
MAIN = "from fsdp_migrate.cli import main; main"
LIBRARIES = "import typer, typer.rich_utils, rich.console, rich.table"
WAYS = {
    "--help": (f"{MAIN}(['--help'])", LIBRARIES, 1.6),
    "config": (
        f"{MAIN}(['config', {str(ROOT / 'examples' / 'configs' / 'accelerate.yaml')!r}])",
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
    missed = False
    for name, (code, libraries, bound) in WAYS.items():
        pairs = [(seconds(code), seconds(libraries)) for _ in range(options.rounds)]
        ratio = statistics.median(one / other for one, other in pairs)
        ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"{name}: {ours:.2f} s; its libraries alone {theirs:.2f} s; ratio {ratio:.2f} (bound {bound})")
        missed = missed or ratio > bound
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
