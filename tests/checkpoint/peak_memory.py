"""Converts in a process of its own, and prints the most private memory it had; for ``test_memory``."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from fsdp_migrate.checkpoint_convert import convert_checkpoint


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")


def main() -> None:
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    convert_checkpoint(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
    done.set()
    watcher.join()
    sys.stdout.write(str(peak))


if __name__ == "__main__":
    main()
