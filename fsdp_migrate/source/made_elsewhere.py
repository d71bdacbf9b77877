"""What all texts of a project say together: of models that other packages make, and of kept names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import is_a_test
from fsdp_migrate.source.python.links import NOTHING, Links
from fsdp_migrate.source.python.made_by_others import is_made_by_others, own_packages


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def with_texts(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files that hold FSDP1 whether another package makes such models, and who keeps names."""
    keeps = any(map(catalog.MAY_KEEP_NAMES.search, texts.values()))
    told = {path for path, text in texts.items() if is_made_by_others([text])}
    tests = set(filter(is_a_test, told))
    # What a test makes is for itself: it does not say what the package's own functions are given.
    others = [text for path, text in texts.items() if path not in tests]
    makes = bool(told - tests) and is_made_by_others(others)
    in_tests = tests if bool(tests) and is_made_by_others(texts.values()) else set()
    if keeps or makes or in_tests:
        told.update(links, (path for path, text in texts.items() if catalog.FSDP in text))
    own = own_packages(texts)
    told.update(path for path, text in texts.items() if any(name in text for name in own))
    known = {path: links.get(path, NOTHING) for path in told}
    return links | {
        path: replace(each, keeps_names=keeps, made_by_others=makes or path in in_tests, own_packages=own)
        for path, each in known.items()
    }
