"""Versions of packages: their numbers, and which are in a range."""

from __future__ import annotations

import re


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
