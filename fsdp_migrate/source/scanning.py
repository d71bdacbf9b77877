"""Many files at once, on all cores: :func:`scan_paths`."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.notebook_cells import cells_of
from fsdp_migrate.errors import ConfigError, SourceError
from fsdp_migrate.source.analysis import has_anything
from fsdp_migrate.source.files import find_sources, read_source
from fsdp_migrate.source.following import links_of
from fsdp_migrate.source.left_whole import with_left_whole
from fsdp_migrate.source.notebook_settings import written_by
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.notebooks import code_of
from fsdp_migrate.source.rewriting import scan_linked
from fsdp_migrate.source.uses import FileReport, ScanReport
from fsdp_migrate.source.workers import on_all_cores


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fsdp_migrate.adapters.conversion.notebook_cells import Cell
    from fsdp_migrate.source.python.links import Links


_SELDOM = (200_000, 20, 20)


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """Spare most garbage collections for a while: they go through whole syntax trees, a sixth of the time.

    Whoever set them rarer still, or off, keeps that.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _SELDOM[0]:
        gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@collecting_seldom()
def scan_paths(paths: Iterable[str | os.PathLike[str]], *, num_processes: int | None = None) -> ScanReport:
    """Find every use of FSDP1 in files and folders; nothing is imported, run or changed.

    Args:
        paths: Files, folders and patterns. ``.gitignore`` is respected.
        num_processes: How many processes work, by default as many as there are cores.

    Returns:
        The uses by file. A file that cannot be read or parsed is reported with the reason, and the others
        go on.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> scan_paths(["fsdp_migrate/source/catalog.py"]).num_files
        1
    """
    paths = [*paths] if isinstance(paths, Iterator) else paths  # they are asked for twice
    files = find_sources(paths)
    links = links_of(files, paths)
    found = list(on_all_cores(functools.partial(scan_file, links=links), files, num_processes))
    left = with_left_whole([use for each in found if each is not None for use in each.uses], files, links)
    found = [scan_file(path, left) if path in left else each for path, each in zip(files, found, strict=True)]
    reports = [report for report in found if report is not None]
    interesting = tuple(report for report in reports if report.uses or report.problem)
    frameworks = frozenset[str]().union(*(each.frameworks for each in links.values()))
    return ScanReport(interesting, len(files), frameworks)


def scan_file(path: Path, links: Mapping[Path, Links]) -> FileReport | None:
    """Scan one file, of which others may say something; None if there is nothing to say of it."""
    name, own = str(path), links.get(path, NOTHING)
    try:
        text = read_source(path)
        if not has_anything(text, own):
            return None
        if path.suffix != ".ipynb":
            return FileReport(name, tuple(scan_linked(text, name, own)))
        return _scan_notebook(text, path, links)
    except SourceError as error:
        return FileReport(name, problem=str(error))


def _scan_notebook(text: str, path: Path, links: Mapping[Path, Links]) -> FileReport:
    """Scan a notebook's cells as one source, and each that writes a source by itself."""
    name = str(path)
    code = code_of(text, name)
    uses = []
    for use in scan_linked(code.text, name, links.get(path, NOTHING)):
        number, line = code.place(use.line)
        uses.append(replace(use, line=line, cell=number))
    broken = list(code.broken)
    for cell in _sources(text):
        try:
            found = scan_linked(cell.body, name, links.get(written_by(path, cell), NOTHING))
        except SourceError:
            broken.append(cell.number)
            continue
        uses += [replace(use, line=use.line + 1, cell=cell.number) for use in found]
    numbers = ", ".join(map(str, sorted(broken)))
    problem = f"{name}: cells {numbers} left out: no Python 3." if broken else None
    return FileReport(name, tuple(sorted(uses, key=lambda use: (use.cell or 0, use.line))), problem)


def _sources(text: str) -> list[Cell]:
    try:
        return [cell for cell in cells_of(text) if cell.kind == "source"]
    except (ConfigError, RecursionError):
        return []
