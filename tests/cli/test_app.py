"""The command without a command, with wrong words, and its version."""

from __future__ import annotations

from importlib import metadata

import pytest

import fsdp_migrate.cli
from fsdp_migrate.cli import main
from fsdp_migrate.versions import own_version


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-command"], "No such command"),
        (["convert"], "Missing argument 'CKPT'"),
        (["convert", "a", "b", "--world-size", "0"], "--world-size"),
        (["convert", "a", "b", "--dtype", "fp8"], "--dtype"),
        (["inspect", "a", "--no-such-option"], "No such option"),
        (["demo", "--steps", "1"], "--steps"),
    ],
)
def test_wrong_usage_exits_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "--help" in printed.err
    assert printed.out == ""


def test_no_command_shows_the_help_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert "convert" in printed.out
    assert "Error" not in printed.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fsdp-migrate {fsdp_migrate.__version__}\n"


def test_sources_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert fsdp_migrate.__version__ == own_version() == "0+unknown"
