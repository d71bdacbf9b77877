"""Configs and commands in the cells of notebooks: what they ask frameworks for, and what becomes of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.notebook_cells import cells_of
from fsdp_migrate.adapters.conversion.notebook_lines import shell_lines
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import raise_on_findings
from fsdp_migrate.source.files import read_source
from fsdp_migrate.source.python.notebooks import code_of


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.adapters.conversion.notebook_cells import Cell
    from fsdp_migrate.adapters.conversion.notebooks import CellConversion
    from fsdp_migrate.adapters.conversion.text import BlockReport
    from fsdp_migrate.findings import Finding


NOTEBOOK = ".ipynb"
_SPEAKS = re.compile(r"fsdp|FullySharded", re.IGNORECASE)
_LINE = re.compile(r"\Aline (\d+)")
_MODELS = re.compile(r"fsdp|FullySharded|Trainer\b|Accelerator\b|\bFabric\b", re.IGNORECASE)
_CONVERTS = "(a cell with FSDP1's settings, which `fsdp-migrate config` converts in the notebook)"
_SAYS = {"converted": _CONVERTS, "fsdp2": "", "unused": ""}
_NOT_CONVERTED = "not converted: {}"


def asked_in_notebook(path: Path) -> str:
    """Return all that the cells of a notebook say: configs, commands, sources, and its Python."""
    try:
        text = read_source(path)
        cells = cells_of(text) if _SPEAKS.search(text) else []
        return "\n".join(f"{cell.head}{cell.body}" for cell in cells)
    except (FSDPMigrateError, RecursionError):
        return ""  # what is wrong with it is said where it is scanned


def sources_in(path: Path) -> dict[Path, str]:
    """Return the Python of a notebook, and what its cells write to files, by the names that imports find.

    A file that is there as well is the project's own.
    """
    try:
        text = read_source(path)
        cells = cells_of(text) if _MODELS.search(text) else []
        found = {path: code_of(text, str(path)).text} if cells else {}
    except (FSDPMigrateError, RecursionError):
        return {}
    for cell in cells:
        if cell.kind == "source":
            file = written_by(path, cell)
            found[file] = f"{found.get(file, '')}{cell.body}" if cell.is_appended else cell.body
    return found


def written_by(notebook: Path, cell: Cell) -> Path:
    """Return the file that a cell writes."""
    return notebook.parent / cell.name


def settings_in_notebook(path: Path) -> Iterator[tuple[int, int, str, BlockReport | None, str]]:
    """Yield the settings in cells: the cell, the line, what stands there, the outcome, what is to be said.

    Without an outcome it is not converted, and the reason is said.
    """
    from fsdp_migrate.adapters.conversion.notebooks import converted_cells
    from fsdp_migrate.config_texts import settings_in

    try:
        text = read_source(path)
        cells = cells_of(text) if _SPEAKS.search(text) else []
        lines = shell_lines(cells)
        done = list(converted_cells(cells, lines, settings_in(path.parent, None, None)))
    except (FSDPMigrateError, RecursionError):
        return
    found = []
    codes = {cell.number: f"{cell.head}{cell.body}".split("\n") for cell in cells}
    for each in done:
        for place, block, said in _outcomes(each):
            cell, line = (
                lines.places[place - 1] if each.cell is None else (each.cell.number, max(place + 1, 1))
            )
            # What Python itself sets is said of the source.
            if (cell, line) not in lines.sets:
                found.append((cell, line, codes[cell][line - 1].strip(), block, said))
    yield from sorted(found, key=lambda one: one[:2])


def _outcomes(each: CellConversion) -> Iterator[tuple[int, BlockReport | None, str]]:
    """Yield the outcomes of a cell with their lines: 0 is the line above, which says what the cell is."""
    if each.done is None:
        if each.problem and each.names_fsdp and each.cell is not None:
            yield 0, None, _NOT_CONVERTED.format(each.problem)
        return
    try:
        raise_on_findings(each.done.findings, strict=False)
    except FSDPMigrateError as error:
        reason = getattr(error, "first_reason", str(error))
        yield (
            _line_of(each.done.blocks[0].path if each.done.blocks else ""),
            None,
            _NOT_CONVERTED.format(reason),
        )
        return
    for block in each.done.blocks:
        told = [_said(found) for found in each.done.findings if found.subject.startswith(block.path)]
        yield _line_of(block.path), block, _SAYS.get(block.state, " ".join(told))
    for found in each.done.findings:
        if found.message.startswith("Left as it is."):
            yield _line_of(found.subject), None, _NOT_CONVERTED.format(found.message)


def _said(found: Finding) -> str:
    return f"{found.message} {found.hint or ''}".rstrip()


def _line_of(subject: str) -> int:
    found = _LINE.match(subject)
    return int(found[1]) if found is not None else 0
