from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.render.reports import command_lines


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def reports(tmp_path: Path) -> dict[str, list[str]]:
    """A command line of each command that reports."""
    return command_lines(tmp_path)
