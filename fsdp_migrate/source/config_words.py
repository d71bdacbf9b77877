"""The texts of the configs and shell scripts around a project that hold a word."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.files import CONFIGS, SHELL, find_sources, read_source


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator


_KINDS: Final = CONFIGS | SHELL | {".cfg", ".toml"}
_MOST: Final = 1_000_000
"""Larger files hold data."""


def configs_of(around: Iterable[str | os.PathLike[str]], words: Iterable[str] = ()) -> Iterator[str]:
    """Yield the texts that can be read, of some words those that hold one."""
    wanted = [*words]
    for path in find_sources(around, _KINDS) if around else ():
        # What is wrong with one is said where it is looked at.
        with contextlib.suppress(SourceError, OSError):
            if path.suffix in _KINDS and path.stat().st_size <= _MOST:
                text = read_source(path)
                if not wanted or any(word in text for word in wanted):
                    yield text
