from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest

from tests.ranks import ROOT
from tools import typecheck


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.any_torch,
    pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed in this lane"),
]

RIGHT = "def double(value: int) -> int:\n    return value * 2\n"
WRONG = "def double(value: int) -> str:\n    return value * 2\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository laid out like this one, small enough to check in a second."""
    for folder in ("fsdp_migrate", "fsdp_migrate/cli", "adapters", "checkpoint_convert/sources"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text("")
        (tmp_path / folder / "module.py").write_text(RIGHT)
    settings = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(re.sub(r"(?m)^plugins = .*$", "", settings))
    return tmp_path


def test_right_code_passes(repository: Path) -> None:
    assert typecheck.main(repository) == 0


@pytest.mark.parametrize(
    "file", ["adapters/module.py", "checkpoint_convert/sources/module.py", "fsdp_migrate/cli/module.py"]
)
def test_an_error_in_every_folder_is_found_and_named(
    repository: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / file).write_text(WRONG)
    assert typecheck.main(repository) == 1
    assert f"\n{file}:2: error:" in "\n" + capsys.readouterr().out


def test_files_that_mypy_leaves_out_are_noticed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "pyproject.toml").write_text('[tool.mypy]\nexclude = ["cli/"]\n')
    assert typecheck.main(repository) == 1
    assert "mypy checked 6 files, but there are 8 to check" in capsys.readouterr().err
