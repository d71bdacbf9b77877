"""Versions of packages: their numbers, which are in a range, and which are installed."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator


PACKAGES = (
    "torch",
    "mosaicml",
    "accelerate",
    "transformers",
    "lightning",
    "peft",
    "bitsandbytes",
    "axolotl",
    "transformer-engine",
)
"""What takes part in a migration, where it is installed."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with.

    Example:
        >>> version_numbers("2.13.0+cpu"), version_numbers("5.10.dev0")
        ((2, 13, 0), (5, 10))
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def is_within(version: str, since: str, before: str) -> bool:
    """Tell whether a version is ``since`` or later, and earlier than ``before``; empty: no bound.

    Example:
        >>> is_within("2.8.1+cpu", "2.6", "2.9"), is_within("2.9", "2.6", "2.9"), is_within("2.9", "2.6", "")
        (True, False, True)
    """
    found = version_numbers(version)
    return (not since or found >= version_numbers(since)) and (not before or found < version_numbers(before))


def installed_versions() -> Iterator[tuple[str, str]]:
    """Yield those of :data:`PACKAGES` that are installed, with their versions."""
    from importlib import metadata

    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)


def own_version() -> str:
    """Return the version of this package; ``0+unknown`` where its sources are used without being installed.

    Example:
        >>> version_numbers(own_version()) >= (0, 1)
        True
    """
    from importlib import metadata

    try:
        return metadata.version("fsdp-migrate")
    except metadata.PackageNotFoundError:
        return "0+unknown"
