"""Runs a script on a rank, as torchrun would."""

from __future__ import annotations

import contextlib
import importlib
import io
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist


def run(script: str, *arguments: str) -> str:
    """Return what ``python SCRIPT ARGUMENTS`` writes to stdout.

    The group that the script ends is left alone, for the rank ends by ``os._exit``. That it was ended once is
    seen to.
    """
    left: list[object] = []
    replaced: Any = dist
    replaced.destroy_process_group = lambda group=None: left.append(group)
    sys.argv = [script, *arguments]
    sys.path[:0] = [str(Path(script).parent)]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(script, run_name="__main__")
    if len(left) != 1:
        msg = f"{script} left its process group {len(left)} times."
        raise AssertionError(msg)
    dist.barrier()
    return out.getvalue()


def run_main(module: str, *arguments: str) -> None:
    """Run ``python -m MODULE ARGUMENTS``."""
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()
