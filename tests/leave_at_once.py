"""Runs a script as ``python SCRIPT ARGS`` would, and leaves without what Python and gloo do at the end.

    torchrun ... tests/leave_at_once.py SCRIPT ARGS

Up to torch 2.7 gloo hangs now and then in ``destroy_process_group()``, and on every torch one of its threads
may drop a tensor while the interpreter is being finalized, which aborts ("terminate called without an active
exception", pytorch#179291): once in some hundred runs on a busy machine, after all work is done.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

import torch.distributed as dist


_PATIENCE = 5.0  # seconds


def leave(group: object = None) -> None:
    """Leave when every rank is about to: to leave earlier closes sockets that others' barrier may need."""
    world_size = int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.add("tests/left", 1)
    deadline = time.monotonic() + _PATIENCE
    while store.add("tests/left", 0) < world_size and time.monotonic() < deadline:
        time.sleep(0.02)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    del sys.argv[0]
    script = Path(sys.argv[0]).resolve()
    sys.path[:1] = [str(script.parent), str(Path(__file__).resolve().parent.parent)]
    dist.destroy_process_group = leave
    runpy.run_path(sys.argv[0], run_name="__main__")
