"""The machine's side of the command: one JSON document on stdout, and nothing else there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Mapping


SCHEMA_VERSION = 1


def write_document(command: str | None, body: Mapping[str, Any]) -> None:
    """Write the one document of a ``--json`` run: the version, the command, and then ``body``."""
    write_json({"schema_version": SCHEMA_VERSION, "command": command, **body})


def write_json(document: Mapping[str, Any]) -> None:
    """Write a document of any form."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def error_body(error: BaseException, message: str) -> dict[str, Any]:
    """Return the part of the document that stands for ``error``."""
    described: dict[str, Any] = {"type": type(error).__name__, "message": message}
    for name in ("path", "field", "feature", "fqn"):
        if (value := getattr(error, name, None)) is not None:
            described[name] = str(value)
    if findings := getattr(error, "findings", None):
        described["findings"] = [finding.as_dict() for finding in findings]
    return {"error": described}
