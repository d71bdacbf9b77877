"""Which files git tracks: what `.gitignore` names is part of the project all the same if it was committed.

Where no git tells, as in an archive that was downloaded, sources tell it themselves.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_LONGEST = 60
_PYTHON: Final = frozenset({".py", ".pyi"})
_WORDS: Final = re.compile(r"fsdp|fully_?sharded", re.IGNORECASE)
_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]{0,4000}|[^\n#]*)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
_MADE: Final = re.compile(
    r"\.|[\w.-]*\.egg-info\Z|(?:[\w.-]*[-_])?(?:build|dist|eggs|wheels|tmp|temp|cache|logs?|runs?|out|outputs?"
    r"|results?|multirun|wandb|mlruns|checkpoints?|ckpts?|snapshots?|artifacts?|htmlcov)(?:[-_.]?\d[\w.-]*)?\Z",
    re.IGNORECASE,
)
"""What folders are called that a build or a run makes: copies of sources lie there too."""
_OF_PYTHON: Final = ("pyvenv.cfg", "conda-meta", "bin/activate_this.py", "Scripts/activate_this.py")
_MOST_ENTRIES: Final = 1000
_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 1 << 20


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


def git_tells(root: Path | None) -> bool:
    """Tell whether git can say what is tracked: not without a repository, nor where it is not installed.

    Example:
        >>> git_tells(None)
        False
    """
    return root is not None and shutil.which("git") is not None


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


def is_environment(folder: Path) -> bool:
    """Tell whether a folder is a virtual environment, or one of conda's.

    Example:
        >>> is_environment(Path("/absent"))
        False
    """
    try:
        return any((folder / name).exists() for name in _OF_PYTHON)
    except OSError:  # it may not be entered, which is said when it is read
        return False


def files_below(folder: Path, never: Collection[str]) -> Iterator[Path]:
    """Yield the files of a folder that `.gitignore` names; what holds very much is data, and left out.

    Example:
        >>> list(files_below(Path("/absent"), ()))
        []
    """
    try:
        with os.scandir(folder) as found:
            entries = list(islice(found, _MOST_ENTRIES + 1))
    except OSError:
        return
    if len(entries) > _MOST_ENTRIES or is_environment(folder):
        return
    for entry in sorted(entries, key=lambda each: each.name):
        if entry.name in never:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(folder / entry.name, never)
        elif entry.is_file():
            yield folder / entry.name


def belonging(hidden: list[tuple[Path, Path]], read: list[Path], top: Path) -> list[Path]:
    """Return what of the files that `.gitignore` names is a project's all the same, as its sources tell.

    Those that speak of FSDP, unless a build or a run made them, and those that sources import.

    Args:
        hidden: The files, each with what of it is named: itself, or a folder above it.
        read: The project's other files.
        top: The folder that all of them lie in.

    Example:
        >>> belonging([], [Path("/absent/train.py")], Path("/absent"))
        []
    """
    hidden = hidden[:_MOST_FILES]
    sources = [path for path in read if path.suffix in _PYTHON] if hidden else []
    known = {_text(path) for path in sources}
    taken = {path: None for path, named in hidden if _speaks(path, named, known)}
    by_module = {path.with_suffix(""): path for path, _ in hidden if path.suffix in _PYTHON}
    left = [*sources, *taken] if by_module else []
    while left:
        for module in _imported(left.pop(), top):
            found = by_module.get(module) or by_module.get(module / "__init__")
            if found is not None and found not in taken:
                taken[found] = None
                left.append(found)
    return list(taken)


def _speaks(path: Path, named: Path, known: Collection[str]) -> bool:
    """Tell whether a file speaks of FSDP, and is neither made by a build or a run nor a copy of another."""
    parts = path.relative_to(named.parent).parts[:-1]
    if any(map(_MADE.match, parts)):
        return False
    text = _text(path)
    return _WORDS.search(text) is not None and text not in known


def _imported(path: Path, top: Path) -> Iterator[Path]:
    """Yield where what a source imports may lie, without a suffix: from its own folder upwards."""
    above = [each for each in path.parents if each == top or top in each.parents]
    for dots, module, names, plain in _IMPORT.findall(_text(path)):
        wanted = [each.split()[0] for each in plain.split(",") if each.split()] if plain else [module]
        members = re.findall(r"\w+", names)
        starts = above[len(dots) - 1 : len(dots)] if dots else [*above, *(each / "src" for each in above)]
        for start in starts:
            for name in wanted:
                base = start.joinpath(*name.split("."))
                yield base
                yield from (base / member for member in members)
                # A package is run before what lies in it.
                yield from (each for each in base.parents if start in each.parents)


def _text(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:
        return ""
    return _text_of(path, state.st_mtime_ns) if state.st_size <= _MOST_BYTES else ""


@functools.lru_cache(maxsize=512)
def _text_of(path: Path, written: int) -> str:
    """Return a file's text as it was written last: a folder is gone through several times."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
