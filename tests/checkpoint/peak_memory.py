"""Converts in its own process, and prints the private memory that each conversion took; for ``test_memory``.

What the process needs for the same work on a small source is taken off: torch alone takes 120 to 260 MiB, by
its build.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert import OutputOptions, convert_checkpoint


if TYPE_CHECKING:
    from collections.abc import Callable


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")


def peak(work: Callable[[], object]) -> int:
    """Do something, and return the most private memory meanwhile."""
    found, done = 0, threading.Event()

    def watch() -> None:
        nonlocal found
        while not done.wait(0.002):
            found = max(found, private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return found


def main() -> None:
    """Take an output, a small source, and the jobs, each a source and its options."""
    out, small, peaks = Path(sys.argv[1]), sys.argv[2], []
    jobs = json.loads(sys.argv[3])
    for _, options in jobs:
        options["output_options"] = OutputOptions(state_dict_type=options.pop("form", "auto"))
    for _, options in jobs:
        convert_checkpoint(small, out, **options)
        shutil.rmtree(out)
    gc.collect()
    before = private_bytes()
    for source, options in jobs:
        peaks.append(peak(partial(convert_checkpoint, source, out, **options)) - before)
        shutil.rmtree(out)
    sys.stdout.write(json.dumps(peaks))


if __name__ == "__main__":
    main()
