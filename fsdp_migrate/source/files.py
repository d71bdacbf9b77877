"""Which files are scanned: folders, patterns and names given, ``.gitignore`` respected, each file once."""

from __future__ import annotations

import functools
import mimetypes
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pathspec import GitIgnoreSpec

from fsdp_migrate.arguments import PATH, SEVERAL, check_arguments
from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.tracked import belonging, files_below, git_tells, is_environment, tracked_in
from fsdp_migrate.text_files import BACKUP


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_BYTES = 5_000_000
"""Larger files are generated or no sources, and are skipped with a line."""

SUFFIXES = frozenset({".py", ".pyi", ".ipynb"})
"""What Python sources and notebooks end in."""
SHELL = frozenset(
    {".bash", ".env", ".job", ".just", ".mk", ".pbs", ".sbatch", ".sh", ".slurm", ".sub", ".zsh"}
)
"""What shell scripts, scripts for schedulers and recipes end in."""
_SCRIPTS = frozenset({".env", "GNUmakefile", "Justfile", "Makefile", "justfile", "makefile"})
CONFIGS = frozenset({".json", ".yaml", ".yml"})
"""What configs end in."""
SETTINGS = CONFIGS | SHELL
"""What files end in that may hold settings of frameworks."""
MAYBE_CONFIGS = frozenset({"", ".cfg", ".conf", ".config"})
"""What files end in that may be configs: Accelerate reads what does not end in ``.json`` as YAML."""
_OTHERS = SETTINGS | {".bin", ".ckpt", ".pt", ".pth", ".safetensors"}
"""What is never Python, also where it is named: configs, checkpoints and shell scripts."""
NEVER = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", "site-packages", "venv"})


_KNOWN = _OTHERS | SUFFIXES | frozenset(mimetypes.MimeTypes().types_map[True])
"""What ends in one of these says by that what it is, and is not opened to see whether it is a script."""
_COPY = re.compile(rf"{re.escape(BACKUP)}(?:\.\d+)?\Z|\.(?:bak|old|orig|rej|sw[op])\Z|~\Z")
"""What copies of files end in, ours and an editor's: nobody starts these."""
_SHEBANG = re.compile(rb"#!.*\b(?:ba|da|k|z)?sh\b")
_FIRST_LINE = 200
_LARGEST_SCRIPT = 1_000_000


def is_shell(path: Path) -> bool:
    """Tell whether a file holds commands for a shell, or variables for its environment.

    One with another suffix, or none, is told by its first line: ``#!/bin/bash``.

    Example:
        >>> is_shell(Path("a/run.sh")), is_shell(Path("Makefile")), is_shell(Path("LICENSE"))
        (True, True, False)
    """
    return path.suffix in SHELL or path.name in _SCRIPTS or _is_script(path)


def _is_script(path: Path) -> bool:
    """Tell whether a file whose name does not say what it is starts as a shell script."""
    if path.suffix in _KNOWN or _COPY.search(path.name):
        return False
    try:
        state = path.stat()
    except OSError:
        return False
    # A pipe would be read for ever.
    is_small = stat.S_ISREG(state.st_mode) and 0 < state.st_size <= _LARGEST_SCRIPT
    return is_small and _starts_as_script(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=65536)
def _starts_as_script(path: Path, written: int, size: int) -> bool:
    """Tell so of a file as it was written last: a folder is gone through several times."""
    try:
        with path.open("rb") as stream:
            return _SHEBANG.match(stream.read(_FIRST_LINE)) is not None
    except OSError:
        return False


@dataclass(eq=False)
class _Ignored:
    """The patterns of the ``.gitignore`` files on the way to a folder, and the repository's root.

    Without a repository, as in a downloaded archive, what they name is kept: it may be the project's.
    """

    specs: list[tuple[Path, GitIgnoreSpec]] = field(default_factory=list)
    root: Path | None = None
    hidden: list[tuple[Path, Path]] = field(default_factory=list)

    def below(self, folder: Path) -> _Ignored:
        try:
            lines = (folder / ".gitignore").read_text(errors="replace").splitlines()
            return _Ignored([*self.specs, (folder, GitIgnoreSpec.from_lines(lines))], self.root, self.hidden)
        except (OSError, ValueError):
            return self

    def covers(self, path: Path, *, is_dir: bool) -> bool:
        # The nearest file has the last word, also where it takes a pattern back.
        for folder, spec in reversed(self.specs):
            name = path.relative_to(folder).as_posix() + ("/" if is_dir else "")
            answer = spec.check_file(name).include
            if answer is not None:
                return answer and not self._is_tracked(path)
        return False

    def keep(self, path: Path, suffixes: frozenset[str], *, is_dir: bool) -> None:
        """Keep what patterns name, where no git tells whether it is tracked."""
        if not git_tells(self.root):
            below = files_below(path, NEVER) if is_dir else (path,)
            self.hidden += [(file, path) for file in below if _is_one(file, suffixes)]

    def _is_tracked(self, path: Path) -> bool:
        return self.root is not None and str(path) in tracked_in(self.root)


def find_sources(paths: Iterable[str | os.PathLike[str]], suffixes: frozenset[str] = SUFFIXES) -> list[Path]:
    """Return the Python sources and notebooks at and below paths, each once, in order.

    A file that is named is taken whatever it is called and wherever it stands; in folders, ``.gitignore``
    files (those above the folder in the same repository, too) and virtual environments are respected. What
    git tracks all the same is the project's, and so is a folder that is named. Where no git tells, so is
    what speaks of FSDP or is imported. Symbolic links to folders are not followed.

    Args:
        paths: Files, folders, and patterns such as ``train_*.py`` or ``src/**/*.py``.
        suffixes: What other files end in, if it is others that are looked for.

    Raises:
        ConfigError: The paths are no paths, or one that is not in a list.
        SourceError: There is nothing at a path, or nothing matches a pattern.
    """
    check_arguments(SEVERAL, paths=paths)
    found: dict[str, Path] = {}
    for given in paths:
        check_arguments(PATH, paths=given)
        text = os.fspath(given)
        for path in _expand(text, suffixes):
            is_other = path.suffix in _OTHERS - suffixes or (not suffixes >= SHELL and is_shell(path))
            named = () if is_other else (path,)
            for file in _below(path, suffixes) if path.is_dir() else named:
                found.setdefault(os.path.realpath(file), file)
    return sorted(found.values())


def _expand(text: str, suffixes: frozenset[str]) -> list[Path]:
    try:
        is_there = Path(text).exists() or Path(text).is_symlink()
    except OSError as error:  # of a name that is too long, or a folder that may not be looked into
        msg = f"{text!r:.200} cannot be looked at: {error.strerror}."
        raise SourceError(msg, path=text) from error
    if is_there:
        return [Path(text)]
    if any(sign in text for sign in "*?["):
        matches = sorted(_glob(text))
        if matches:
            return [match for match in matches if match.is_dir() or match.suffix in suffixes]
        msg = f"Nothing matches {text!r}."
    else:
        msg = f"There is nothing at {text!r}."
    raise SourceError(msg, path=text)


def _glob(pattern: str) -> Iterator[Path]:
    # `Path.glob` takes no pattern that begins with `/`.
    path = Path(pattern)
    return Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def _above(folder: Path) -> _Ignored:
    """Return the patterns of the folders between a repository's root and a folder of it."""
    absolute = folder.absolute()
    chain = [absolute, *absolute.parents]
    root = next((place for place, above in enumerate(chain) if (above / ".git").exists()), None)
    repository = _Ignored(root=None if root is None else chain[root])
    ignored = repository
    for above in reversed(chain[1 : (root or 0) + 1]):
        ignored = ignored.below(above)
    # A folder that is named is asked for, whatever they say of it.
    return repository if ignored.covers(absolute, is_dir=True) else ignored


def _below(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    ignored = _above(folder)
    found = list(_walk(folder, ignored, suffixes))
    return [*found, *belonging(ignored.hidden, found, folder)]


def _walk(folder: Path, ignored: _Ignored, suffixes: frozenset[str]) -> Iterator[Path]:
    absolute = folder.absolute()
    ignored = ignored.below(absolute)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # what is wrong with it is said when it is read
        return
    for entry in entries:
        is_dir = entry.is_dir(follow_symlinks=False)
        path = folder / entry.name
        if entry.name in NEVER:
            continue
        if ignored.covers(absolute / entry.name, is_dir=is_dir):
            ignored.keep(path, suffixes, is_dir=is_dir)
        elif is_dir:
            if not is_environment(path):
                yield from _walk(path, ignored, suffixes)
        elif not _leads_to_a_folder(entry) and _is_one(path, suffixes):
            yield path


def _is_one(path: Path, suffixes: frozenset[str]) -> bool:
    return path.suffix in suffixes or (suffixes >= SHELL and _is_script(path))


def _leads_to_a_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def read_source(path: Path) -> str:
    """Return the text of a source, as Python reads it: by its coding cookie, UTF-8 otherwise.

    Line ends stay as they are.

    Raises:
        SourceError: It cannot be read, is too large, or is no text.
    """
    import tokenize

    try:
        if not path.is_file():
            what = "a folder that cannot be read" if path.is_dir() else "no file"
            raise SourceError(f"{path}: skipped, it is {what}.", path=path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            msg = f"{path}: skipped, it has {size:,} bytes; sources have up to {MAX_BYTES:,}."
            raise SourceError(msg, path=path)
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: skipped, it cannot be read: {error.strerror}.", path=path) from None
    if b"\0" in data:
        raise SourceError(f"{path}: skipped, it is binary.", path=path)
    lines = iter(data.splitlines(keepends=True))
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(
            f"{path}: skipped, it is no text that can be decoded: {error}.", path=path
        ) from None
