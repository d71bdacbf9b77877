"""Launch lines in shell scripts: ``accelerate launch --use_fsdp``, ``train.py --fsdp full_shard``.

And the configs that scripts write themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.errors import FindingsError, FSDPMigrateError, NothingToConvertError
from fsdp_migrate.source.files import SHELL, find_sources, read_source
from fsdp_migrate.source.launch_precision import gives_precision


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.findings import Finding


State = Literal["changes", "elsewhere", "fsdp2", "unused", "refused"]
_STATES: dict[str, State] = {"converted": "changes", "fsdp2": "fsdp2", "unused": "unused"}
_IN_SCRIPT = "(a here-document with FSDP1's settings, which `fsdp-migrate config` converts in the script)"
_SPEAKS_OF_FSDP = re.compile(r"--(?:use_)?fsdp\b|--fsdp_|--use-fsdp\b|--fsdp-")

_CASTS = "FM354"
_STANDS_ELSEWHERE = "FM356"
_WRITTEN_THERE = re.compile(r", and write (?P<what>.+?) there: ")


@dataclass(frozen=True)
class LaunchFound:
    """A command in a script that asks for FSDP, or writes a config that does.

    ``state``: what ``fsdp-migrate config`` would do with it.

    ``codes`` are those of the findings that say of it what could be noticed.
    ``lacks_version``: HF Trainer's without ``version``, by which transformers runs FSDP2 from 5.10 on.
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
    wanted: str = ""

    @property
    def place(self) -> str:
        """Where it is, as editors understand it."""
        return f"{self.path}:{self.line}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {
            "path": self.path,
            "line": self.line,
            "command": self.command,
            "framework": self.framework,
            "state": self.state,
            "message": self.message,
        }


def find_launches(paths: Iterable[str | os.PathLike[str]]) -> list[LaunchFound]:
    """Return the commands with FSDP flags in the shell scripts at and below paths. Nothing is run.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_launches(["fsdp_migrate/source"])
        []
    """
    return [
        found for path in find_sources(paths, SHELL) if path.suffix in SHELL for found in _of_script(path)
    ]


def _of_script(path: Path) -> Iterator[LaunchFound]:
    try:
        text = read_source(path)
    except FSDPMigrateError:
        return
    for line, command in commands_of(text):
        speaks = _SPEAKS_OF_FSDP.search(command) is not None
        if not (speaks or gives_precision(path, command)):
            continue
        found = _look_at(path, line, command)
        # What such a command says beside its config is that its precision is FSDP2's to cast.
        if found is None or not (speaks or _CASTS in found.codes):
            continue
        # `--fsdp_activation_checkpointing` may be an option of the script's own.
        if "accelerate" not in found.framework or "accelerate" in text or "--use_fsdp" in command:
            yield found
    yield from _written(path, text)


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
        >>> list(commands_of("# no\na \\\n  -b\nc\n"))
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
        parts.append(bare.removesuffix("\\").rstrip())
        if bare.endswith("\\"):
            continue
        command = " ".join(filter(None, parts))
        parts = []
        if command:
            yield start, command
    if command := " ".join(filter(None, parts)):
        yield start, command


def _look_at(path: Path, line: int, command: str) -> LaunchFound | None:
    from fsdp_migrate.config_files import convert_command_line

    try:
        report = convert_command_line(command)
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
