"""Files in, files out: :func:`rewrite_paths`. What is written exists whole or not at all."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.errors import SourceError
from fsdp_migrate.left_comments import comments_in, looks_for_them
from fsdp_migrate.source.files import find_sources, read_source
from fsdp_migrate.source.following import links_of
from fsdp_migrate.source.left_whole import are_mixed, imports_ours, with_left_whole
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.parsing import parse_module
from fsdp_migrate.source.rewriting import rewrite_linked, scan_linked
from fsdp_migrate.source.scanning import collecting_seldom
from fsdp_migrate.source.still_fsdp1 import still_fsdp1
from fsdp_migrate.source.workers import on_all_cores
from fsdp_migrate.text_files import keep_backup, unified_diff, write_whole


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.uses import Use


@dataclass(frozen=True)
class Rewritten:
    """One file that changes, or that cannot be read or written; ``problem`` says why."""

    path: str
    before: str = ""
    after: str = ""
    problem: str | None = None
    backup: str | None = None

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        return unified_diff(self.before, self.after, self.path)

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {"path": self.path, "diff": self.diff, "problem": self.problem, "backup": self.backup}


@dataclass(frozen=True)
class RewriteReport:
    """The files that change, and those that cannot be read or written."""

    files: tuple[Rewritten, ...]
    num_files: int
    written: bool
    unclear: tuple[Use, ...] = ()
    """Where it is not seen whether a model is the sharded one, also in files that do not change."""
    still: tuple[Use, ...] = ()
    """What still shards with FSDP1 afterwards, in files that call ``prepare_fully_shard`` nowhere."""

    is_mixed: bool = False
    """Whether runs of such files come to lines that are turned all the same."""

    @property
    def changed(self) -> tuple[Rewritten, ...]:
        """The files whose text changes."""
        return tuple(file for file in self.files if file.problem is None)

    @property
    def left(self) -> Counter[str]:
        """How many comments with each code stand in the files that change, for somebody to settle."""
        return Counter(code for file in self.changed for _, code in comments_in(file.after))

    @property
    def looks_for_comments(self) -> bool:
        """Whether a file that changes calls what stops a run at the comments."""
        return any(looks_for_them(file.after) for file in self.changed)

    @property
    def imports_ours(self) -> bool:
        """Whether a file that changes imports fsdp_migrate, which the project then needs."""
        return any(imports_ours(file.after) for file in self.changed)

    @property
    def problems(self) -> tuple[Rewritten, ...]:
        """The files that could not be read or written."""
        return tuple(file for file in self.files if file.problem is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON documents."""
        return {
            "num_files": self.num_files,
            "num_changed": len(self.changed),
            "written": self.written,
            "left": dict(self.left),
            "unclear": [use.as_dict() for use in self.unclear],
            "still_fsdp1": [use.as_dict() for use in self.still],
            "files": [file.as_dict() for file in self.files],
        }


@collecting_seldom()
def rewrite_paths(paths: Iterable[str | os.PathLike[str]], *, write: bool = False) -> RewriteReport:
    """Turn the FSDP1 code of files and folders into FSDP2 code; nothing of it is imported or run.

    Args:
        paths: Files, folders and patterns. ``.gitignore`` is respected. Notebooks are left alone.
        write: Write the files. Each is replaced at once, its text before is kept beside it under the name
            with ``.fsdp1`` added (and a number, where another text is kept there), and its mode stays.

    Returns:
        The files that change, with their diffs. A file that cannot be read, parsed or written is reported
        with the reason and left as it is, and the others go on.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> rewrite_paths(["fsdp_migrate/source/catalog.py"]).changed
        ()
    """
    paths = [*paths] if isinstance(paths, Iterator) else paths  # they are asked for twice
    files = [path for path in find_sources(paths) if path.suffix != ".ipynb"]
    links = links_of(files, paths)
    done, left = _rewrite_all(files, links)
    found = [each for each, _ in done if each is not None]
    if write:
        found = [each if each.problem else _write(each) for each in found]
    uses = [use for _, uses in done for use in uses]
    unclear = tuple(use for use in uses if use.action == "unclear")
    still = still_fsdp1(uses)
    if write and still:  # the comments have moved the lines
        paths_left = {use.path for use in still}
        moved = {file.path: file for file in found if file.path in paths_left and not file.problem}
        anew = [use for file in moved.values() for use in _uses_after(file, {**links, **left})]
        still = still_fsdp1([*(use for use in uses if use.path not in moved), *anew])
    return RewriteReport(tuple(found), len(files), write, unclear, still, are_mixed(still, uses, files))


def _rewrite_all(
    files: list[Path], links: Mapping[Path, Links]
) -> tuple[list[tuple[Rewritten | None, list[Use]]], Mapping[Path, Links]]:
    """Rewrite each file; once more those of which all is left, now that this is known, with what it says."""
    done = dict(zip(files, on_all_cores(functools.partial(_rewrite_file, links=links), files), strict=True))
    left = with_left_whole([use for _, uses in done.values() for use in uses], files, links)
    done |= {path: _rewrite_file(path, left) for path in left}
    return [*done.values()], left


def _uses_after(file: Rewritten, links: Mapping[Path, Links]) -> list[Use]:
    return scan_linked(file.after, file.path, links.get(Path(file.path), NOTHING))


def _rewrite_file(path: Path, links: Mapping[Path, Links]) -> tuple[Rewritten | None, list[Use]]:
    try:
        before = read_source(path)
        after, uses = rewrite_linked(before, str(path), links.get(path, NOTHING))
        if after == before:
            return None, uses
        _check(after, path)
    except SourceError as error:
        return Rewritten(str(path), problem=str(error)), []
    return Rewritten(str(path), before, after), uses


def _check(after: str, path: Path) -> None:
    """Make sure that what would be written can be read: an error here is one of ours."""
    try:
        parse_module(after, str(path))
    except SourceError:
        msg = (
            f"{path}: left as it is, because its rewritten text would be no Python. Please report this file."
        )
        raise SourceError(msg, path=path) from None


def _write(file: Rewritten) -> Rewritten:
    # The file that a link leads to: a replaced link would leave that as it was.
    path = Path(os.path.realpath(file.path))
    try:
        data = path.read_bytes()
        encoding = _encoding(data)
        if data.decode(encoding) != file.before:
            return Rewritten(file.path, problem=f"{file.path}: left as it is, it changed meanwhile.")
        backup = keep_backup(path).path
        write_whole(path, file.after.encode(encoding), like=path)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Rewritten(file.path, problem=f"{file.path}: left as it is, it cannot be written: {reason}.")
    return Rewritten(file.path, file.before, file.after, backup=str(backup))


def _encoding(data: bytes) -> str:
    import tokenize

    lines = iter(data.splitlines(keepends=True))
    return tokenize.detect_encoding(lambda: next(lines, b""))[0]
