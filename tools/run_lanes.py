"""Run commands side by side, and show what each says, line by line, behind its name.

    python tools/run_lanes.py core='make test-core' composer='make test-composer'

Many tests wait for other processes, so two lanes on two cores take hardly longer than one. Exits with 1 if
a command failed, when all are done.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from typing import IO


def main(arguments: list[str]) -> int:
    """Run the commands that ``name=command`` arguments give; return the exit status."""
    commands = dict(argument.split("=", 1) for argument in arguments)
    start = time.monotonic()
    lanes = {
        name: subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for name, command in commands.items()
    }
    try:
        _show(lanes)
    except KeyboardInterrupt:
        # The terminal has interrupted the lanes too; what they say of it is shown before the end.
        _show(lanes)
    failed = [name for name, lane in lanes.items() if lane.wait() != 0]
    print(f"{', '.join(lanes)}: {time.monotonic() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _show(lanes: dict[str, subprocess.Popen[bytes]]) -> None:
    readers = [
        threading.Thread(target=_show_lane, args=(name, lane.stdout), daemon=True)
        for name, lane in lanes.items()
        if lane.stdout is not None
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def _show_lane(name: str, stream: IO[bytes]) -> None:
    for line in stream:
        print(f"[{name}] {line.decode(errors='replace').rstrip()}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
