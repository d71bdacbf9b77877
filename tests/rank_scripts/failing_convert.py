"""The command under torchrun, on ranks of which one fails while it writes: FAIL_RANK and FAIL_HOW say so.

It fails once the other is writing, which that one notes in the file FAIL_BEGUN: when a rank dies, torchrun
ends at once, and without a word, the one that is still starting.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from fsdp_migrate.cli import main


BEGUN = Path(os.environ["FAIL_BEGUN"])


def fail(self: ItemWriter, item: Any, file: Any) -> None:
    how = os.environ["FAIL_HOW"]
    end = time.monotonic() + 60
    while not BEGUN.exists() and time.monotonic() < end:
        time.sleep(0.02)
    if how == "error":
        raise OSError(5, "Input/output error", "/the/disk")
    os.kill(os.getpid(), signal.SIGKILL)


def slowly(self: ItemWriter, item: Any, file: Any) -> None:
    BEGUN.touch()
    write(self, item, file)
    time.sleep(0.2)


if __name__ == "__main__":
    write = ItemWriter.write
    ItemWriter.write = fail if os.environ["RANK"] == os.environ["FAIL_RANK"] else slowly  # type: ignore[method-assign]
    sys.exit(main(["convert", *sys.argv[1:]]))
