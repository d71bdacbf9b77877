"""One thing to do, as ``scan`` lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One thing to do, and the commands that do it."""

    text: str
    commands: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {"text": self.text, "commands": list(self.commands)}
