"""What a known fault is: one entry of the table, with what sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fsdp_migrate.findings import listed
from fsdp_migrate.versions import is_within


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fsdp_migrate.doctor.sight import Sight


LooksAt = Literal["environment", "config", "model", "checkpoint", "sources"]
"""What a fault is seen in: this environment, what options name, or files at ``PATH``."""

Harm = Literal["silent", "fails", "costs"]
"""What a fault does: other results without an error; an error or a hang; memory, speed or safety."""

HARMS: dict[Harm, str] = {
    "silent": "other results, without an error",
    "fails": "an error, a hang or an abort",
    "costs": "costs memory, speed or safety",
}
"""The words for each, the worst first."""

LOOKED_UP = "2026-11-22"
MOST_SEEN = 3


def seen_of(signs: Iterable[str]) -> str:
    """Return the signs of a fault that are shown: the first ones, and how many more there are.

    Example:
        >>> seen_of(["`a` is one", "`b` is one", "`c` is one", "`d` is one"])
        '`a` is one; `b` is one; `c` is one and 1 more'
    """
    return listed(signs, MOST_SEEN, between="; ")


@dataclass(frozen=True)
class Affected:
    """A package, and its versions: from ``since`` on, and no longer in ``before``; empty: no bound known.

    Example:
        >>> affected = Affected("torch", "2.6", "2.9")
        >>> affected.covers("2.8.1+cpu"), affected.covers("2.13")
        (True, False)
        >>> Affected("torch", "2.6", "2.9").words, Affected("accelerate").words
        ('torch 2.6 to before 2.9', 'accelerate')
    """

    package: str
    since: str = ""
    before: str = ""

    def covers(self, version: str) -> bool:
        """Tell whether a version is one of them."""
        return is_within(version, self.since, self.before)

    @property
    def words(self) -> str:
        """The package and its versions, in words."""
        if self.since and self.before:
            return f"{self.package} {self.since} to before {self.before}"
        if self.since:
            return f"{self.package} {self.since} and later"
        return f"{self.package} before {self.before}" if self.before else self.package


@dataclass(frozen=True)
class KnownFault:
    """One known fault.

    Attributes:
        name: What it is called here.
        says: What goes wrong, in a sentence.
        link: The thread that tells of it, as ``owner/repository#number``; or ``measured``, where we found it
            ourselves.
        looks_at: What it is seen in.
        sees: Returns what was seen of it, where the installed versions are affected; or nothing.
        action: What to do.
        affects: In which packages and versions; all of them must be installed. Empty: it has no version.
        reproduced: Whether a test of ours makes it happen.
        harm: What it does to a run; what is worst is shown first.
        is_handled: Whether ``prepare_fully_shard`` mends it, or refuses with the reason.
        looked_up: When this was last looked up.
    """

    name: str
    says: str
    link: str
    looks_at: LooksAt
    sees: Callable[[Sight], str]
    action: str
    affects: tuple[Affected, ...] = ()
    reproduced: bool = False
    harm: Harm = "fails"
    is_handled: bool = False
    looked_up: str = LOOKED_UP

    @property
    def url(self) -> str:
        """The address of the thread; empty if it is our own finding."""
        # Where the number is a pull request's, GitHub leads from here to that.
        repository, hash_sign, thread = self.link.partition("#")
        return f"https://github.com/{repository}/issues/{thread}" if hash_sign else ""

    @property
    def versions(self) -> str:
        """The versions that are affected, in words."""
        return ", ".join(each.words for each in self.affects) or "any"
