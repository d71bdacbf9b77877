"""The package runs as a module."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from fsdp_migrate.cli import main


pytestmark = pytest.mark.any_torch


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    assert result.stdout.startswith("fsdp-migrate ")


def test_garbage_is_collected_rarely_in_the_commands_own_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collections while torch is imported take a tenth of a command's time."""
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["fsdp-migrate", "--version"])
    try:
        main(["--version"])
        as_a_function = gc.get_threshold()
        main()
        as_the_command = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert as_a_function == before
    assert as_the_command[0] > as_a_function[0]
    capsys.readouterr()
