from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.pages.pages import fill


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something for each command, under names that would do harm in a page."""
    return fill(tmp_path, monkeypatch)
