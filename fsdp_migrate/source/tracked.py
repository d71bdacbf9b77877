"""Which files git tracks: what `.gitignore` names is part of the project all the same if it was committed."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path


_LONGEST = 60


def tracked_in(root: Path) -> frozenset[str]:
    """Return the files that git tracks in a repository, and the folders that these stand in.

    Nothing of the repository is run: hooks and monitors that its settings name are switched off.

    Args:
        root: The repository's root folder.

    Returns:
        Absolute paths as texts. Nothing where git is not installed, or does not know the folder.

    Example:
        >>> tracked_in(Path("/absent"))
        frozenset()
    """
    try:
        written = (root / ".git" / "index").stat().st_mtime_ns
    except OSError:  # a worktree's `.git` is a file; then it is asked for once
        written = 0
    return _tracked(root, written)


@functools.lru_cache(maxsize=16)
def _tracked(root: Path, written: int) -> frozenset[str]:
    """Return them as the index was written last: a folder is gone through several times."""
    safe = ("-c", "core.fsmonitor=false", "-c", "safe.directory=*")
    # In a hook of git's these name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *safe, "-C", str(root), "ls-files", "-z"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    names = [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]
    folders = {folder for name in names for folder in name.parents}
    return frozenset(str(root / each) for each in (*names, *folders))
