"""Findings: how anything that changes on the way from FSDP1 to FSDP2 is said.

Every FSDP1 argument, config key and checkpoint entry ends in the output or in a finding that names it.
:data:`FINDING_CODES` is the one table of codes; ``docs/findings.md`` is the same table for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from fsdp_migrate.errors import FindingsError


Fidelity = Literal["exact", "equivalent", "obsolete", "changed", "refused"]
"""How faithfully FSDP2 does what was asked.

``exact``: the same. ``equivalent``: another mechanism, the same result. ``obsolete``: FSDP2 needs no such
option. ``changed``: something that a user could notice differs. ``refused``: cannot be migrated.
"""

FIDELITIES: tuple[Fidelity, ...] = get_args(Fidelity)


@dataclass(frozen=True)
class FindingCode:
    """One row of the table of codes: its fidelity and, in one line, what it says."""

    fidelity: Fidelity
    summary: str


@dataclass(frozen=True)
class Finding:
    """One thing that the migration did to one argument, parameter or checkpoint entry.

    Example:
        >>> finding = make_finding("FM013", "limit_all_gathers", "True: no option is needed.")
        >>> finding.fidelity
        'obsolete'
    """

    code: str
    fidelity: Fidelity
    subject: str
    message: str
    hint: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return the finding as it stands in JSON reports."""
        return {
            "code": self.code,
            "fidelity": self.fidelity,
            "subject": self.subject,
            "message": self.message,
            "hint": self.hint,
        }


FINDING_CODES: Mapping[str, FindingCode] = MappingProxyType(
    {
        # FM0xx: FSDP1 arguments
        "FM001": FindingCode("exact", "The argument's effect is the same under FSDP2."),
    }
)


def make_finding(code: str, subject: str, message: str, hint: str | None = None) -> Finding:
    """Build a finding; its fidelity is that of its code.

    Raises:
        KeyError: The code is not in :data:`FINDING_CODES`.
    """
    return Finding(code, FINDING_CODES[code].fidelity, subject, message, hint)


def raise_on_findings(findings: Iterable[Finding], *, strict: bool = False) -> None:
    """Raise for refused findings, and under ``strict`` for changed ones; all of them in one error.

    Raises:
        FindingsError: There is such a finding. It holds each one that stops the work.
    """
    found = tuple(findings)
    refused = [finding for finding in found if finding.fidelity == "refused"]
    stopping = refused or [f for f in found if strict and f.fidelity == "changed"]
    if not stopping:
        return
    reason = "cannot be migrated" if refused else "would change, and `strict` was asked for"
    lines = [f"{len(stopping)} {'thing' if len(stopping) == 1 else 'things'} {reason}:"]
    for finding in stopping:
        hint = f" {finding.hint}" if finding.hint else ""
        lines.append(f"  {finding.code} `{finding.subject}`: {finding.message}{hint}")
    raise FindingsError("\n".join(lines), findings=stopping, strict=not refused)
