"""Configs that a shell script writes in here-documents, converted where they stand in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.assigned import with_assignment
from fsdp_migrate.adapters.conversion.here_documents import holds_settings
from fsdp_migrate.adapters.conversion.shell import HereDocument, here_documents
from fsdp_migrate.adapters.conversion.text import BlockReport, TextConversion, convert_text
from fsdp_migrate.adapters.conversion.variables import Piece
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.adapters.engine.settings import Settings
    from fsdp_migrate.findings import Finding


@dataclass(slots=True)
class WrittenConfigs:
    """What becomes of them. ``lines``: where those are asked for that were read."""

    pieces: list[Piece] = field(default_factory=list)
    blocks: list[BlockReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    """The words of the commands that write them."""

    def beside(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return what is said of a script: of a file that it writes, not that it is another one."""
        others = (each for each in findings if not self._is_of_written(each))
        return [*others, *self.findings]

    def _is_of_written(self, finding: Finding) -> bool:
        name = named_in(finding).rpartition("/")[2]
        is_named = any(word.rpartition("/")[2] == name for word in self.asked)
        return bool(name) and finding.subject.endswith("--config_file") and is_named


def named_in(finding: Finding) -> str:
    """Return the other file that a finding says is not converted with this one; else nothing.

    Example:
        >>> from fsdp_migrate.findings import make_finding
        >>> named_in(make_finding("FM356", "x", "o/c.json is another file."))
        'o/c.json'
    """
    name, is_other, _ = finding.message.partition(" is another file")
    return name if is_other and finding.code == "FM356" else ""


def convert_written(text: str, settings: Settings | None) -> WrittenConfigs:
    r"""Turn the FSDP1 settings that a script writes to files into FSDP2's.

    Example:
        >>> config = "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n"
        >>> done = convert_written(f"cat > c.yaml <<E\n{config}E\n", None)
        >>> [(block.path, block.state) for block in done.blocks]
        [('line 1', 'converted')]
    """
    done = WrittenConfigs()
    for here, made in _converted(text, settings):
        place = f"line {here.line}"
        done.lines.add(here.line)
        done.asked += [word.strip("\"'") for word in text.splitlines()[here.line - 1].split()]
        done.blocks += [replace(block, path=place) for block in made.blocks]
        # What the shell puts in is what the script has set above it.
        above = "" if here.is_quoted else text[: here.start]
        said = (with_assignment(each, above, settings) for each in made.findings)
        done.findings += [replace(each, subject=f"{place}: {each.subject}") for each in said]
        done.pieces += [Piece(here.start, here.end, made.text)] if made.is_changed else []
    return done


def with_writing_line(finding: Finding, text: str) -> Finding:
    r"""Say of another file that a finding names where the script writes it: the next run does that again.

    Example:
        >>> from fsdp_migrate.findings import make_finding
        >>> said = make_finding("FM356", "x", "o/c.json is another file.", "Convert it.")
        >>> print(with_writing_line(said, "echo '{}' > o/c.json").hint)
        Convert it. Line 1 writes that file: what it becomes must stand there.
    """
    name = named_in(finding)
    if not name or not finding.hint:
        return finding
    written = re.search(
        rf"(?:>|\btee\s(?:\s*-a)?)\s*[\"']?(?:\./)?{re.escape(name.removeprefix('./'))}(?![\w.])", text
    )
    if written is None:
        return finding
    line = text.count("\n", 0, written.start()) + 1
    return replace(
        finding, hint=f"{finding.hint} Line {line} writes that file: what it becomes must stand there."
    )


def configs_written(text: str) -> list[str]:
    """Return the configs with FSDP settings that a script writes, as they stand in it."""
    return [made.source for _, made in _converted(text, None)]


def _converted(text: str, settings: Settings | None) -> Iterator[tuple[HereDocument, TextConversion]]:
    for here in here_documents(text):
        inner = text[here.start : here.end]
        # Where the shell expands it, a backslash is one of the shell's.
        if not holds_settings(inner) or ("\\" in inner and not here.is_quoted):
            continue
        try:
            yield here, convert_text(inner, settings=settings)
        except (ConfigError, UnsupportedFeatureError):
            continue
