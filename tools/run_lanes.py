"""Run commands side by side, and show what each says, line by line, behind its name.

    python tools/run_lanes.py core='make test-core' composer='make test-composer'

Many tests wait for other processes, so two lanes on two cores take hardly longer than one. Exits with 1 if
a command failed, when all are done. What failed is named once more at the end, for reports of which only the
end is kept.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from typing import IO


WIDTH = 300


def main(arguments: list[str]) -> int:
    """Run the commands that ``name=command`` arguments give; return the exit status."""
    commands = dict(argument.split("=", 1) for argument in arguments)
    start = time.monotonic()
    lanes = {
        name: subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for name, command in commands.items()
    }
    named: list[str] = []
    try:
        _show(lanes, named)
    except KeyboardInterrupt:
        # The terminal has interrupted the lanes too; what they say of it is shown before the end.
        _show(lanes, named)
    failed = [name for name, lane in lanes.items() if lane.wait() != 0]
    print(*named, sep="\n", end="\n" if named else "")
    print(f"{', '.join(lanes)}: {time.monotonic() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _show(lanes: dict[str, subprocess.Popen[bytes]], named: list[str]) -> None:
    readers = [
        threading.Thread(target=_show_lane, args=(name, lane.stdout, named), daemon=True)
        for name, lane in lanes.items()
        if lane.stdout is not None
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def _show_lane(name: str, stream: IO[bytes], named: list[str]) -> None:
    for data in stream:
        line = f"[{name}] {data.decode(errors='replace').rstrip()}"
        print(line, flush=True)
        # As pytest's summary begins its lines.
        if data.startswith((b"FAILED ", b"ERROR ")):
            named.append(line[:WIDTH])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
