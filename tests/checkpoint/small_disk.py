"""Convert onto disks of every size that is too small. Run in a user namespace of its own, where it may mount.

Prints what each size led to, one line each: the size, the kind of the error, and what was left on the disk.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.errors import FSDPMigrateError


def main() -> None:
    source, disk, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ways = {
        "rewrite": {"world_size": 3},
        "copy": {"link": "copy"},
        "sums": {"world_size": 2, "checksums": True},
    }
    for way, options in ways.items():
        size, outcome = 4096, ""
        while outcome != "done":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
            try:
                convert_checkpoint(source, f"{disk}/out", **options)  # type: ignore[arg-type]
                outcome = "done"
            except FSDPMigrateError as error:
                outcome = f"{type(error).__name__}: {'full' if 'is full' in str(error) else error}"
            left = sorted(path.name for path in Path(disk).iterdir())
            sys.stdout.write(f"{way}|{size}|{outcome}|{left}\n")
            subprocess.run(["umount", disk], check=True)
            size += step


if __name__ == "__main__":
    main()
