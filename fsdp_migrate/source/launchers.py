"""Launch lines in shell scripts: ``accelerate launch --use_fsdp``, ``train.py --fsdp full_shard``.

And the configs that scripts write themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.errors import FindingsError, FSDPMigrateError, NothingToConvertError
from fsdp_migrate.source.beside_configs import adds_to_its_config
from fsdp_migrate.source.files import SHELL, find_sources, is_shell, read_source
from fsdp_migrate.source.notebook_settings import NOTEBOOK, settings_in_notebook
from fsdp_migrate.source.shown_commands import PAGES, Scripts, is_page, numbered_commands


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.config_files import ConfigConversion
    from fsdp_migrate.findings import Finding


State = Literal["changes", "elsewhere", "fsdp2", "unused", "refused"]
_STATES: dict[str, State] = {"converted": "changes", "fsdp2": "fsdp2", "unused": "unused"}
_IN_SCRIPT = "(a here-document with FSDP1's settings, which `fsdp-migrate config` converts in the script)"
_SPEAKS_OF_FSDP = re.compile(r"--(?:use_)?fsdp\b|--fsdp_|--use-fsdp\b|--fsdp-")

_OTHERWISE = frozenset({"FM343", "FM354"})
"""What is said of the optimizer of a command, and of its precision, which FSDP2 casts otherwise."""
_BY_HAND = (
    "by hand: its flags stand within quotes, or in a variable that others use, where they cannot be changed; "
    "`fsdp-migrate config` shows what each command becomes"
)
_SHOWN = "by hand: it stands in a page; `fsdp-migrate config --command '...'` shows what it becomes"
_ASSIGNS = re.compile(r"\s*(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?(\w+)\+?=")
_FLAG = re.compile(r"--[\w-]+(?:[= ]+(?!-)[^\s'\"]+)?")
_ENVIRONMENT = "FM355"
_STANDS_ELSEWHERE = "FM356"
_WRITTEN_THERE = re.compile(r", and write (?P<what>.+?) there: ")


@dataclass(frozen=True)
class LaunchFound:
    """A command in a script that asks for FSDP, or writes a config that does.

    ``state``: what ``fsdp-migrate config`` would do with it.

    ``codes`` are those of the findings that say of it what could be noticed.
    ``lacks_version``: HF Trainer's without ``version``, by which transformers runs FSDP2 from 5.10 on.
    ``by_hand``: it changes, but not where its flags stand in the script, such as in a variable.
    ``wanted``: what is to be written into the file that it names, which says it of FSDP1 itself.
    """

    path: str
    line: int
    command: str
    framework: str
    state: State
    message: str = ""
    codes: frozenset[str] = frozenset()
    lacks_version: bool = False
    by_hand: bool = False
    cell: int | None = None
    """Of a notebook the cell, within which the line is counted."""
    wanted: str = ""

    @property
    def is_shown(self) -> bool:
        """Whether it stands in a page, which nothing converts."""
        return self.path.endswith(tuple(PAGES))

    @property
    def place(self) -> str:
        """Where it is, as editors understand it."""
        where = self.path if self.cell is None else f"{self.path}:cell {self.cell}"
        return f"{where}:{self.line}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {
            "path": self.path,
            "line": self.line,
            "cell": self.cell,
            "command": self.command,
            "framework": self.framework,
            "state": self.state,
            "message": self.message,
        }


def find_launches(paths: Iterable[str | os.PathLike[str]]) -> list[LaunchFound]:
    """Return the commands with FSDP flags in the shell scripts and notebooks at and below paths.

    Of notebooks also the configs in their cells. Nothing is run.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_launches(["fsdp_migrate/source"])
        []
    """
    every = list(paths)
    files = [path for path in find_sources(every, SHELL | PAGES | {"", NOTEBOOK}) if path.is_file()]
    scripts = Scripts(every)
    return [
        *(found for path in files if is_shell(path) for found in _of_script(path)),
        *(found for path in files if is_page(path) for found in _of_page(path, scripts)),
        *(each for path in files if path.suffix == NOTEBOOK for each in _of_notebook(path)),
    ]


def _of_page(path: Path, scripts: Scripts) -> Iterator[LaunchFound]:
    """Yield the commands of a page that start scripts beside it with FSDP1's settings."""
    try:
        text = read_source(path)
    except FSDPMigrateError:
        return
    for line, command in numbered_commands(path, text, scripts) if _SPEAKS_OF_FSDP.search(text) else ():
        found = _look_at(path, line, command, "") if _SPEAKS_OF_FSDP.search(command) else None
        if found is not None and found.state == "changes":
            yield replace(found, by_hand=True, message=_SHOWN)


def _of_notebook(path: Path) -> Iterator[LaunchFound]:
    for cell, line, command, block, said in settings_in_notebook(path):
        framework = "" if block is None else block.framework
        state = "refused" if block is None else _STATES.get(block.state, "elsewhere")
        codes = frozenset({_ENVIRONMENT} if state == "elsewhere" else ())
        yield LaunchFound(str(path), line, command, framework, state, said, codes, cell=cell)


def _of_script(path: Path) -> Iterator[LaunchFound]:
    try:
        text = read_source(path)
    except FSDPMigrateError:
        return
    found_here: list[LaunchFound] = []
    for line, command in commands_of(text):
        speaks = _SPEAKS_OF_FSDP.search(command) is not None
        if not (speaks or adds_to_its_config(path, command)):
            continue
        found = _look_at(path, line, command, text)
        if found is None or (not speaks and _OTHERWISE.isdisjoint(found.codes)):
            continue
        # `--fsdp_activation_checkpointing` may be an option of the script's own.
        if "accelerate" not in found.framework or "accelerate" in text or "--use_fsdp" in command:
            found_here.append(found)
    written = list(_written(path, text))
    if found_here:
        yield from _told_by_script(path, text, found_here)
    elif _SPEAKS_OF_FSDP.search(text):
        yield from _in_variables(path, text, {each.line for each in written})
    yield from written
    yield from _in_environment(path, text)


def _told_by_script(path: Path, text: str, launches: list[LaunchFound]) -> Iterator[LaunchFound]:
    """Yield launch lines with what ``fsdp-migrate config`` would do with the script as a whole."""
    edited = _edited_lines(path, text) if any(each.state == "changes" for each in launches) else frozenset()
    ends = (*(each.line for each in launches[1:]), len(text.splitlines()) + 1)
    lines = text.splitlines()
    parts = {_variable_of(lines[line - 1]) for line in edited if line <= len(lines)} - {""}
    for each, end in zip(launches, ends, strict=True):
        is_edited = not edited.isdisjoint(range(each.line, max(end, each.line + 1)))
        is_part = not edited or (_variable_of(each.command) in parts and _keeps_its_flags(each, text))
        if each.state == "changes" and not is_edited and is_part and _leaves_none(path):
            continue  # with what its variables hold and the files that it names nothing is left to do
        yield each if each.state != "changes" or is_edited else replace(each, by_hand=True, message=_BY_HAND)


def _variable_of(command: str) -> str:
    """Return the variable that a line sets or adds to; nothing of another line: ``CMD+=" --use_fsdp"``."""
    found = _ASSIGNS.match(command)
    return "" if found is None else found[1]


def _keeps_its_flags(found: LaunchFound, script: str) -> bool:
    """Tell whether a line's own flags stay as they are, so that what is added may stand in another."""
    from fsdp_migrate.config_files import convert_command_line

    try:
        done = convert_command_line(found.command, script=script)
    except FSDPMigrateError:
        return False
    return {*_FLAG.findall(found.command)} <= {*_FLAG.findall(done.conversion.text)}


def _leaves_none(path: Path) -> bool:
    """Tell whether the conversion of a script as a whole leaves nothing to be changed by hand."""
    try:
        report = _converted(path)
    except FindingsError:
        return False
    return report is not None and all(each.code != "FM355" for each in report.conversion.findings)


def _edited_lines(path: Path, text: str) -> frozenset[int]:
    """Return the lines of a script that its conversion changes, or behind which it adds some."""
    every = range(1, len(text.splitlines()) + 1)
    try:
        report = _converted(path)
    except FindingsError:
        return frozenset(every)  # a finding says so itself
    if report is None:
        return frozenset()
    matcher = SequenceMatcher(None, text.splitlines(), report.conversion.text.splitlines(), autojunk=False)
    changes = (each for each in matcher.get_opcodes() if each[0] != "equal")
    return frozenset(line for _, start, end, _, _ in changes for line in every[start : max(end, start + 1)])


def _in_variables(path: Path, text: str, others: set[int]) -> Iterator[LaunchFound]:
    """Yield the commands whose flags all stand in variables, which are seen in the script as a whole."""
    try:
        report = _converted(path)
    except FindingsError as error:
        lines = (number for number, each in commands_of(text) if _SPEAKS_OF_FSDP.search(each))
        line = next(lines, 1)
        yield LaunchFound(
            str(path), line, text.splitlines()[line - 1].strip(), "", "refused", error.first_reason
        )
        return
    for block in report.conversion.blocks if report is not None else ():
        _, is_line, number = block.path.partition("line ")
        state = _STATES.get(block.state)
        if is_line and int(number) not in others and state is not None:
            command = text.splitlines()[int(number) - 1].strip()
            yield LaunchFound(str(path), int(number), command, block.framework, state)


def _converted(path: Path) -> ConfigConversion | None:
    """Return what ``fsdp-migrate config`` would do with a script; None where it ends with an error.

    Raises:
        FindingsError: Something in it cannot be migrated.
    """
    from fsdp_migrate.config_files import convert_config_file

    try:
        return convert_config_file(path)
    except FindingsError:
        raise
    except FSDPMigrateError:
        return None


def _in_environment(path: Path, text: str) -> Iterator[LaunchFound]:
    """Yield where a script gives Accelerate FSDP1 by variables, which are left as they are."""
    from fsdp_migrate.adapters.conversion.environment import told_by_environment

    lines = text.splitlines()
    blocks, findings = told_by_environment(text)
    for block in blocks:
        line = int(block.path.rpartition(" ")[2])
        said = " ".join(f"{each.message} {each.hint or ''}".rstrip() for each in findings)
        if block.state == "unchanged":
            command, codes = lines[line - 1].strip(), frozenset(each.code for each in findings)
            yield LaunchFound(str(path), line, command, "accelerate", "elsewhere", said, codes)


def _written(path: Path, text: str) -> Iterator[LaunchFound]:
    """Yield the configs that a script writes itself, in here-documents."""
    from fsdp_migrate.adapters.conversion.line_ends import with_line_feeds
    from fsdp_migrate.adapters.conversion.written_configs import convert_written

    lines = text.splitlines()
    for block in convert_written(with_line_feeds(text), None).blocks:
        line = int(block.path.rpartition(" ")[2])
        state = _STATES.get(block.state)
        if state is not None:
            said = _IN_SCRIPT if state == "changes" else ""
            yield LaunchFound(str(path), line, lines[line - 1].strip(), block.framework, state, said)


def commands_of(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield each command of a shell script with its line; lines that go on are put together.

    Example:
        >>> list(commands_of("# no\na \\\n  -b\nc \\\n  # -d\n"))
        [(2, 'a -b'), (4, 'c')]
    """
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not parts:
            start = number
            if line.lstrip().startswith("#"):
                continue
        bare = line.strip()
        if bare.startswith("#"):  # a word that begins so opens a comment, which ends the command
            bare = ""
        parts.append(bare.removesuffix("\\").rstrip())
        if bare.endswith("\\"):
            continue
        command = " ".join(filter(None, parts))
        parts = []
        if command:
            yield start, command
    if command := " ".join(filter(None, parts)):
        yield start, command


def _look_at(path: Path, line: int, command: str, script: str) -> LaunchFound | None:
    from fsdp_migrate.config_files import convert_command_line

    try:
        report = convert_command_line(command, script=script)
    except FindingsError as error:
        return LaunchFound(str(path), line, command, "", "refused", error.first_reason)
    except NothingToConvertError:
        return None
    except FSDPMigrateError as error:
        return LaunchFound(str(path), line, command, "", "refused", " ".join(str(error).split()))
    frameworks = ", ".join(dict.fromkeys(block.framework for block in report.conversion.blocks))
    noticed = frozenset(
        finding.code for finding in report.conversion.findings if finding.fidelity in {"changed", "refused"}
    )
    lacks = frameworks == "hf" and report.state == "changes" and not report.has_version
    return LaunchFound(
        *(str(path), line, command, frameworks, report.state),
        codes=noticed,
        lacks_version=lacks,
        wanted=wanted_elsewhere(report.conversion.findings),
    )


def wanted_elsewhere(findings: Iterable[Finding]) -> str:
    """Return what findings say is to be written into another file, which does not say it itself."""
    hints = (finding.hint or "" for finding in findings if finding.code == _STANDS_ELSEWHERE)
    return next((match["what"] for hint in hints if (match := _WRITTEN_THERE.search(hint))), "")
