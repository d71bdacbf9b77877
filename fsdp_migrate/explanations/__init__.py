"""What each code of :data:`fsdp_migrate.findings.FINDING_CODES` means, why it is so, and what to do.

One table for ``fsdp-migrate explain`` and for ``docs/findings.md``. It is text alone, and is there without a network.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.explanations import arguments, checkpoints, composer, configs, loading, sources, targets
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.left_comments import ENDS_ITSELF, ends_runs, stops_runs


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.finding_code import Fidelity


__all__ = ["EXPLANATIONS", "Explanation", "explain_code"]

_TABLES = (arguments, checkpoints, targets, sources, configs, composer, loading)


@dataclass(frozen=True)
class Explanation:
    """What a code means, why it is so, and what to do about it."""

    code: str
    fidelity: Fidelity
    means: str
    why: str
    action: str

    @property
    def comment(self) -> str:
        """Whether a comment with this code in a source stops a run; empty where there is nothing to settle.

        Example:
            >>> explain_code("FM322").comment
            'A comment with this code in a source stops no run: look at it before you train.'
        """
        if self.code not in sources.EXPLANATIONS:
            return ""
        if stops_runs(self.code):
            return (
                "A comment with this code in a source stops a run that calls `prepare_fully_shard`: it raises "
                "until the comment is deleted."
            )
        if ends_runs(self.code):
            return f"{ENDS_ITSELF[0].upper()}{ENDS_ITSELF[1:]}"
        is_open = self.fidelity in {"changed", "refused"}
        return (
            "A comment with this code in a source stops no run: look at it before you train."
            if is_open
            else ""
        )

    def as_dict(self) -> dict[str, str]:
        """Return it as it stands in JSON documents."""
        return {
            "code": self.code,
            "fidelity": self.fidelity,
            "means": self.means,
            "why": self.why,
            "action": self.action,
            "comment": self.comment,
        }


EXPLANATIONS: Mapping[str, Explanation] = MappingProxyType(
    {
        code: Explanation(code, FINDING_CODES[code].fidelity, FINDING_CODES[code].summary, why, action)
        for table in _TABLES
        for code, (why, action) in table.EXPLANATIONS.items()
    }
)


def explain_code(code: str) -> Explanation:
    """Return the explanation of a code, in upper or lower case.

    Raises:
        ConfigError: There is no such code.

    Example:
        >>> explain_code("fm217").fidelity
        'refused'
    """
    wanted = code.strip().upper()
    if wanted not in EXPLANATIONS:
        near = difflib.get_close_matches(wanted, EXPLANATIONS, n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        msg = f"There is no finding {code!r}.{meant} Codes look like FM217; `fsdp-migrate explain` lists them all."
        raise ConfigError(msg, field="code")
    return EXPLANATIONS[wanted]
