"""Notebooks: the configs and commands in their cells, converted where they stand.

Their Python, and the sources that cells write, are those of ``fsdp-migrate scan``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.command import convert_script, settings_in_script
from fsdp_migrate.adapters.conversion.exported import with_exports
from fsdp_migrate.adapters.conversion.here_documents import holds_settings
from fsdp_migrate.adapters.conversion.notebook_cells import Cell, cells_of, with_bodies
from fsdp_migrate.adapters.conversion.notebook_lines import ShellLines, shell_lines
from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.conversion.written_configs import named_in
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.errors import ConfigError, NothingToConvertError, UnsupportedFeatureError
from fsdp_migrate.findings import listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_LINE = re.compile(r"\Aline (\d+)")
_LEFT = "Convert it by hand, or a command of it with `--command`, and put the outcome there."
_PARTS = (
    "This cell begins `{}`, and cell {} goes on with it (`%%writefile -a`). Write the whole file in one "
    "cell, and convert again."
)
_TOGETHER = "`{}` hands `{}` to the shell, which becomes `{}`. Python's texts in it are not changed."
_NOTHING = (
    "No cell of this notebook has FSDP1 settings that can be changed: neither a config, such as that of "
    "`%%writefile fsdp.yaml`, nor a command, such as `!accelerate launch ...`. What its Python asks for "
    "`fsdp-migrate scan` tells."
)


@dataclass(frozen=True, slots=True)
class CellConversion:
    """What became of a cell, or of the lines of several for a shell; ``problem`` says why of nothing."""

    cell: Cell | None
    done: TextConversion | None
    problem: str = ""
    names_fsdp: bool = False


def convert_notebook(text: str, settings: Settings | None = None) -> TextConversion:
    """Turn the FSDP1 settings in the cells of a notebook into FSDP2's, and leave every other character.

    Raises:
        NothingToConvertError: No cell has any.
        ConfigError: It is no notebook.
    """
    cells = cells_of(text)
    lines = shell_lines(cells)
    bodies: dict[int, str] = {}
    blocks, findings, names = [], [], False
    written: set[str] = set()
    for each in converted_cells(cells, lines, settings):
        names |= each.names_fsdp
        place = _placing(each.cell, lines)
        if each.done is None:
            where = "notebook" if each.cell is None else f"cell {each.cell.number}"
            is_said = each.names_fsdp and each.problem
            message = f"Left as it is. {each.problem}"
            findings += [make_finding("FM355", where, message, _LEFT)] if is_said else []
            continue
        written |= {each.cell.name.rpartition("/")[2]} if each.cell is not None and each.cell.name else set()
        blocks += [replace(block, path=place(block.path)) for block in each.done.blocks]
        findings += [replace(found, subject=place(found.subject)) for found in each.done.findings]
        if each.done.is_changed:
            new = lines.bodies(each.done.text) if each.cell is None else {each.cell.number: each.done.text}
            bodies.update(new)
    if not blocks:
        said = " ".join(f"{each.subject}: {each.message}" for each in findings)
        raise NothingToConvertError(f"{_NOTHING} {said}".strip(), names_fsdp=names)
    findings = [each for each in findings if named_in(each).rpartition("/")[2] not in written]
    before = {cell.number: cell.body for cell in cells}
    bodies = {number: body for number, body in bodies.items() if body != before[number]}
    return TextConversion(text, with_bodies(text, bodies), tuple(blocks), tuple(findings))


def texts_of_notebook(text: str, settings: Settings | None = None) -> list[tuple[str, bool | None]]:
    """Return each config of a notebook, and what its commands stand for, with whether it is JSON."""
    cells = cells_of(text)
    lines = shell_lines(cells)
    configs = [cell for cell in cells if cell.kind == "config" and holds_settings(cell.body)]
    scripts = [*(cell.body for cell in cells if cell.kind == "shell"), lines.text]
    told = with_exports(settings or Settings(), lines.text)
    flags = [(given, True) for script in scripts for given in settings_in_script(script, told)]
    return [*((cell.body, cell.is_json) for cell in configs), *flags]


def converted_cells(
    cells: list[Cell], lines: ShellLines, settings: Settings | None = None
) -> Iterator[CellConversion]:
    """Yield what becomes of each cell with a config or a script, and of the lines for a shell."""
    told = with_exports(settings or Settings(), lines.text)
    written: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.kind in {"config", "shell"}:
            parts = written.setdefault(cell.name or f"{cell.number}", [])
            parts[:] = [*(parts if cell.is_appended else []), cell]
    for cell in cells:
        parts = next((each for each in written.values() if cell in each), [cell])
        if cell.kind == "config" and len(parts) > 1:
            yield from [_in_parts(parts, told)] if cell is parts[0] else []
        elif cell.kind == "config":
            yield _converted(cell, cell.body, convert_text, told)
        elif cell.kind == "shell":
            above = "".join(each.body for each in parts if each.number < cell.number)
            yield _converted(cell, cell.body, convert_script, with_exports(told, above))
    yield _converted(None, lines.text, convert_script, settings)
    by_number = {cell.number: cell for cell in cells}
    yield from (_put_together(by_number[at], line, whole, told) for at, line, whole in lines.put_together)


def _in_parts(parts: list[Cell], settings: Settings) -> CellConversion:
    """Say of a config that several cells write that it is left, where it asks for FSDP1."""
    first, *others = parts
    whole = _converted(first, "".join(each.body for each in parts), convert_text, settings)
    if whole.done is not None and not whole.done.is_changed:
        return whole
    cells = listed([each.number for each in others])
    problem = _PARTS.format(first.name, cells) if whole.done is not None else whole.problem
    return CellConversion(first, None, problem, whole.names_fsdp or whole.done is not None)


def _put_together(cell: Cell, line: str, whole: str, settings: Settings) -> CellConversion:
    """Say of a line for a shell with texts of Python's in it what the shell gets, and what that becomes."""
    done = _converted(cell, whole, convert_script, settings)
    if done.done is None:
        return CellConversion(cell, None, f"`{line}`: {done.problem}", done.names_fsdp)
    if not done.done.is_changed:
        return CellConversion(cell, None)
    return CellConversion(cell, None, _TOGETHER.format(line, whole, done.done.text), names_fsdp=True)


def _converted(
    cell: Cell | None, text: str, convert: Callable[..., TextConversion], settings: Settings | None
) -> CellConversion:
    given = {"is_json": cell.is_json} if cell is not None and cell.kind == "config" else {}
    try:
        return CellConversion(cell, convert(text, settings=settings, **given))
    except NothingToConvertError as error:
        return CellConversion(cell, None, str(error), error.names_fsdp)
    except (ConfigError, UnsupportedFeatureError) as error:
        return CellConversion(cell, None, str(error), "fsdp" in text.lower())


def _placing(cell: Cell | None, lines: ShellLines) -> Callable[[str], str]:
    """Return what says of a place in a converted text where in the notebook it is."""

    def placed(subject: str) -> str:
        found = _LINE.match(subject)
        if found is None:
            return subject if cell is None else f"cell {cell.number}: {subject}"
        above = cell.head.count("\n") if cell is not None else 0
        where = (cell.number, int(found[1]) + above) if cell is not None else lines.places[int(found[1]) - 1]
        return f"cell {where[0]}, line {where[1]}{subject[found.end() :]}"

    return placed
