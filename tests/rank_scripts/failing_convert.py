"""The command under torchrun, on ranks of which one fails while it writes: FAIL_RANK and FAIL_HOW say so."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from fsdp_migrate.checkpoint_convert.item_writer import ItemWriter
from fsdp_migrate.cli import main


def fail(self: ItemWriter, item: Any, file: Any) -> None:
    how = os.environ["FAIL_HOW"]
    if how == "error":
        raise OSError(5, "Input/output error", "/the/disk")
    os.kill(os.getpid(), signal.SIGKILL)


def slowly(self: ItemWriter, item: Any, file: Any) -> None:
    write(self, item, file)
    time.sleep(0.2)


if __name__ == "__main__":
    write = ItemWriter.write
    ItemWriter.write = fail if os.environ["RANK"] == os.environ["FAIL_RANK"] else slowly  # type: ignore[method-assign]
    sys.exit(main(["convert", *sys.argv[1:]]))
