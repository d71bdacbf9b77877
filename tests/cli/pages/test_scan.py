"""The page of a scan."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


def test_a_scan_with_a_page_loads_no_torch(folder: Path) -> None:
    command = ["scan", "source", "--html", "report.html", "--markdown", "report.md"]
    code = (
        f"import sys; from fsdp_migrate.cli import main; main({command!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()
