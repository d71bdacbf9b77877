"""Converts in its own process, and prints the most private memory of each conversion; for ``test_memory``."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoint_convert import convert_checkpoint


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")


def peak(source: str, out: Path, options: dict[str, Any]) -> int:
    """Convert, and return the most private memory meanwhile."""
    gc.collect()
    found, done = 0, threading.Event()

    def watch() -> None:
        nonlocal found
        while not done.wait(0.002):
            found = max(found, private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        convert_checkpoint(source, out, **options)
    finally:
        done.set()
        watcher.join()
    return found


def main() -> None:
    """Take the jobs, each a source and its options, from the second argument; the first is the output."""
    out, peaks = Path(sys.argv[1]), []
    for source, options in json.loads(sys.argv[2]):
        peaks.append(peak(source, out, options))
        shutil.rmtree(out)
    sys.stdout.write(json.dumps(peaks))


if __name__ == "__main__":
    main()
