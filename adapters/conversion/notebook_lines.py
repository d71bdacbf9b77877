"""What IPython hands to a shell in the lines of Python cells, as one script, and back: ``!torchrun ...``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.notebook_texts import put_in, put_together, texts_in


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.adapters.conversion.notebook_cells import Cell


_COMMAND = re.compile(r"([ \t]*(?:\w+[ \t]*=[ \t]*)?(?:!{1,2}|%(?:sx|system|run)\b))(.*)\Z")
_SET = re.compile(r"[ \t]*%(?:env|set_env)[ \t]+(\w+)[ \t=]+(.+)\Z")
_ENVIRON = re.compile(
    r"[ \t]*os\.environ(?:\.setdefault\(|\[)[ \t]*['\"](\w+)['\"](?:\][ \t]*=|[ \t]*,)"
    r"[ \t]*(['\"])([^'\"]*)\2[ \t]*\)?[ \t]*(?:#.*)?\Z"
)
_MARK = re.compile(r"#(\d+)([ !=])\Z")
# IPython puts the value of an expression in place of single braces.
_FLAG = re.compile(r"--(?:use[-_])?fsdp")
# What stands before the value of such a flag.
_VALUE = re.compile(r"--(?:use[-_])?fsdp[\w-]*[=\s]+[\"']?\Z")
_NAME_ALONE = re.compile(r"\s*(?:\{\w+\}|\$\w+)\s*")
_JSON = re.compile(r"'\{\"[^'\n]*\}'")


@dataclass(slots=True)
class ShellLines:
    """The script, and what stands in the cells in place of its lines."""

    text: str = ""
    places: list[tuple[int, int]] = field(default_factory=list)
    """Of each line of the script the cell and its line there."""
    sets: set[tuple[int, int]] = field(default_factory=set)
    """The places where Python itself sets a variable."""
    put_together: list[tuple[int, str, str]] = field(default_factory=list)
    """Of each line in which Python's texts ask for FSDP the cell, the line, and what the shell gets."""
    _lines: list[tuple[int, str]] = field(default_factory=list)
    """Of each mark the cell, and what it stands for: the line, or the begin of one."""

    def bodies(self, text: str) -> dict[int, str]:
        """Return the cells as they are when the script has become another text."""
        found: dict[int, list[str]] = {}
        begin, cell, is_set = "", 0, False
        given = {*self.text.split("\n")}
        for line in text.removesuffix("\n").split("\n"):
            mark = _MARK.match(line)
            if mark is None:
                now = line if line in given else _JSON.sub(_with_braces, line)
                found[cell].extend([] if is_set else [f"{begin}{now}"])
                begin, is_set = "", False
                continue
            cell, kept = self._lines[int(mark[1])]
            lines = found.setdefault(cell, [])
            begin, is_set = kept if mark[2] == "!" else "", mark[2] == "="
            lines.extend([kept] if mark[2] != "!" else [])
        return {cell: "\n".join(lines) for cell, lines in found.items()}

    def add(self, cell: int, number: int, sign: str, kept: str, command: str | None) -> None:
        """Note a line, and what it is for a shell: nothing, a command, or a variable that is set."""
        self.text += f"#{len(self._lines)}{sign}\n"
        self._lines.append((cell, kept))
        self.places.append((cell, number))
        if command is not None:
            self.go_on(cell, number, command)

    def go_on(self, cell: int, number: int, command: str) -> None:
        """Note a line of the shell's."""
        self.text += f"{command}\n"
        self.places.append((cell, number))


def shell_lines(cells: Iterable[Cell]) -> ShellLines:
    r"""Return what the lines of Python cells hand to a shell, or set in its environment.

    Example:
        >>> from fsdp_migrate.adapters.conversion.notebook_cells import cells_of
        >>> text = '{"cells": [{"cell_type": "code", "source": ["x = 1\\n", "!ls"]}]}'
        >>> lines = shell_lines(cells_of(text))
        >>> lines.text.splitlines(), lines.bodies(lines.text)
        (['#0 ', '#1!', 'ls'], {1: 'x = 1\n!ls'})
    """
    done = ShellLines()
    texts: dict[str, str] = {}
    for cell in cells:
        goes_on = False
        texts = texts_in(cell.body, texts) if cell.kind == "python" else texts
        for number, line in enumerate(cell.body.split("\n") if cell.kind == "python" else (), 1):
            if goes_on:
                done.go_on(cell.number, number, line)
            elif (command := _COMMAND.match(line)) and _is_put_together(command[2], texts):
                whole = put_together(command[2], texts).strip()
                # Of a command that stands in Python as a whole the source's rules speak.
                is_all = _NAME_ALONE.fullmatch(command[2]) is not None
                done.put_together += [] if is_all else [(cell.number, line.strip(), whole)]
                done.add(cell.number, number, " ", line, None)
            elif command:
                done.add(cell.number, number, "!", command[1], command[2])
            elif (given := _SET.match(line)) is not None:
                done.add(cell.number, number, "=", line, f"export {given[1]}={_quoted(given[2])}")
            elif (given := _ENVIRON.match(line)) is not None:
                done.add(cell.number, number, "=", line, f"export {given[1]}={_quoted(given[3])}")
                done.sets.add((cell.number, number))
            else:
                done.add(cell.number, number, " ", line, None)
            goes_on = (goes_on or _COMMAND.match(line) is not None) and line.rstrip().endswith("\\")
    return done


def _is_put_together(command: str, texts: Mapping[str, str]) -> bool:
    """Tell whether texts of Python's are flags for FSDP, or their values, in a command of one line."""
    if command.rstrip().endswith("\\"):
        return False
    return any(
        texts.get(name) is not None and (_FLAG.search(texts[name]) or _VALUE.search(command[:at]))
        for name, at in put_in(command)
    )


def _with_braces(match: re.Match[str]) -> str:
    return match[0].replace("{", "{{").replace("}", "}}")


def _quoted(value: str) -> str:
    value = value.strip()
    return value if re.fullmatch(r"[\w.,$/:-]*|\"[^\"]*\"|'[^']*'", value) else f'"{value}"'
