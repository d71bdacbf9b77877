"""What scanning finds: one use of FSDP1 each, what it becomes, and the edit that makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from fsdp_migrate.finding_codes import FINDING_CODES


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import libcst as cst


Action = Literal["rewritten", "kept", "commented", "mentioned", "unclear"]
"""What ``rewrite`` does with a use.

``rewritten``: it becomes FSDP2 code. ``kept``: it stays, and is right as it is. ``commented``: it cannot be
turned with certainty, and gets a comment that says what to do. ``mentioned``: in a comment or a string, which
nothing is done to. ``unclear``: it is not seen whether it is about a sharded model, or what is done with one;
nothing is done to it.
"""

ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class Need:
    """A name that rewritten code needs, and the module that it is imported from."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Replace:
    """Put what ``build`` makes of a node, its parts already edited, in the node's place."""

    node: cst.CSTNode
    build: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Unwrap:
    """Take an item out of a ``with`` statement; where none is left, its body takes its place."""

    item: cst.WithItem


@dataclass(frozen=True, eq=False)
class Remove:
    """Remove a simple statement."""

    statement: cst.BaseSmallStatement


Edit = Replace | Unwrap | Remove


@dataclass(frozen=True, eq=False)
class Found:
    """A use, as a rule finds it.

    ``covers`` are the references to FSDP1 that it accounts for; ``note`` is the comment above a use that is
    rewritten all the same; ``paste`` is code to be put into the program, which stands below a comment.
    ``hook`` is what the class of another file, as imports write it, has to be given with it.
    Several uses with one code in a statement have one comment, but for those that are ``is_of_its_own``.
    """

    code: str
    node: cst.CSTNode
    becomes: str
    action: Action
    edits: tuple[Edit, ...] = ()
    needs: tuple[Need, ...] = ()
    covers: tuple[cst.CSTNode, ...] = ()
    note: str = ""
    paste: str = ""
    hook: tuple[str, str] | None = None
    is_of_its_own: bool = False


@dataclass(frozen=True)
class Use:
    """One use of FSDP1, as it is reported. Lines and columns count from 1; of a notebook, within its cell."""

    path: str
    line: int
    column: int
    rule: str
    code: str
    text: str
    becomes: str
    action: Action
    cell: int | None = None
    is_marked: bool = False
    """Whether the comment that ``rewrite`` leaves stands above it."""
    note: str = ""
    """The comment that ``rewrite`` leaves above what it changes, or nothing."""

    @property
    def is_for_people(self) -> bool:
        """Whether somebody has to look at it: at the comment of ``rewrite``, or at what this leaves alone."""
        return self.action == "commented" or bool(self.note) or self.is_left_alone

    @property
    def is_left_alone(self) -> bool:
        """Whether ``rewrite`` would turn it, but stands in a notebook."""
        return self.action == "rewritten" and self.cell is not None

    @property
    def place(self) -> str:
        """Where it is, as editors understand it."""
        where = (
            f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"
        )
        return f"{where}:{self.column}"

    def as_dict(self) -> dict[str, Any]:
        """Return the use as it stands in JSON reports."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "cell": self.cell,
            "rule": self.rule,
            "code": self.code,
            "fidelity": FINDING_CODES[self.code].fidelity,
            "text": self.text,
            "becomes": self.becomes,
            "action": self.action,
            "note": self.note,
        }


def of_shared_comments(uses: Iterable[Use]) -> str:
    """Say that there may be fewer comments than places, where a file has several with one code.

    Example:
        >>> one = Use("t.py", 1, 1, "dimensions", "FM318", "p.ndim", "", "commented")
        >>> of_shared_comments([one]), of_shared_comments([one, one])
        ('', ', of which those in one statement share a comment')
    """
    kinds = [(use.path, use.code) for use in uses]
    return ", of which those in one statement share a comment" if len({*kinds}) < len(kinds) else ""


@dataclass(frozen=True)
class FileReport:
    """What was found in one file, or why nothing could be."""

    path: str
    uses: tuple[Use, ...] = ()
    problem: str | None = None
    """Why the file was not read, or not fully: no Python, too large, not readable."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON documents."""
        return {"path": self.path, "problem": self.problem, "uses": [use.as_dict() for use in self.uses]}


@dataclass(frozen=True)
class ScanReport:
    """What was found in all files; those without a use or a problem are only counted."""

    files: tuple[FileReport, ...]
    num_files: int
    frameworks: frozenset[str] = frozenset()
    """What shards models of these files by FSDP1, as they and what stands around them say: ``accelerate``."""

    @property
    def num_read(self) -> int:
        """How many files could be read."""
        return self.num_files - sum(1 for file in self.files if file.problem)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Every use, file after file."""
        return tuple(use for file in self.files for use in file.uses)

    @property
    def by_rule(self) -> dict[str, dict[str, int]]:
        """How many uses each rule found, by what ``rewrite`` does with them."""
        counts: dict[str, dict[str, int]] = {}
        for use in self.uses:
            row = counts.setdefault(use.rule, dict.fromkeys(ACTIONS, 0))
            row[use.action] += 1
        return dict(sorted(counts.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON documents."""
        totals = dict.fromkeys(ACTIONS, 0)
        for use in self.uses:
            totals[use.action] += 1
        return {
            "num_files": self.num_files,
            "totals": totals,
            "by_rule": self.by_rule,
            "files": [file.as_dict() for file in self.files],
        }
