"""What `scan` takes of sources that all hold FSDP, against LibCST's parse and metadata of the same files.

python benchmarks/bench_scan.py [--files 48] [--rounds 5] [--json]

The sources are written here: training scripts, each with the model, the loop and the checkpoints of a run, in
several forms. Each side is a process of its own on one core, its start and imports included; processor time,
which other work on the machine inflates less than the wall time. Exits with 1 where the median of the rounds'
ratios is above the bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_start import seconds
from benchmarks.scan_sources import write_sources


BOUND = 1.4
OURS = """
from fsdp_migrate.source import scan_paths
report = scan_paths([{folder!r}], num_processes=1)
assert report.num_files == len(report.files) == {files}
"""
THEIRS = """
import pathlib
from libcst import metadata, parse_module
found = [metadata.MetadataWrapper(parse_module(path.read_text())).resolve_many(
    {{metadata.PositionProvider, metadata.ParentNodeProvider, metadata.ScopeProvider}}
) for path in pathlib.Path({folder!r}).glob("*.py")]
assert len(found) == {files}
"""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="bench-scan-") as name:
        write_sources(Path(name), options.files)
        ours, theirs = (each.format(folder=name, files=options.files) for each in (OURS, THEIRS))
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(options.rounds)]
    ratio = statistics.median(one / other for one, other in pairs)
    mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    rate = options.files / mine
    print(f"scan of {options.files} files: {mine:.2f} s, {rate:.1f} files a second and core")
    print(f"LibCST's parse and metadata alone: {other:.2f} s; ratio {ratio:.2f} (bound {BOUND})")
    if options.json:
        print(json.dumps({"files": options.files, "seconds": mine, "theirs": other, "ratio": ratio}))
    return 1 if ratio > BOUND else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="also print the figures as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
