"""Imports by the names that packaging gives to folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.package_folders import package_folders
from tests.source.projects import WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAVES = (
    "import torch\nfrom shc.training.dist import wrap\nnet = wrap(net)\n"
    "torch.save(net.state_dict(), 'a.pt')\n"
)


@pytest.mark.parametrize(
    ("name", "text", "folder"),
    [
        ("pyproject.toml", '[tool.setuptools.package-dir]\n"shc" = "{}"\n\n[tool.x]\na = "b"\n', "src"),
        ("pyproject.toml", '[tool.setuptools]\npackage-dir = {{ shc = "{}" }}\n', "."),
        ("setup.cfg", "[options]\npackage_dir =\n    shc = {}\nzip_safe = no\n", "lib/code"),
        ("setup.py", "from setuptools import setup\nsetup(package_dir={{'shc': '{}'}})\n", "src"),
    ],
)
def test_a_package_whose_folder_has_another_name(tmp_path: Path, name: str, text: str, folder: str) -> None:
    code = tmp_path / folder / "training"
    code.mkdir(parents=True)
    (code / "dist.py").write_text(WRAP)
    (code / "train.py").write_text(SAVES)
    assert "FM308" not in {use.code for use in scan_paths([tmp_path]).uses}
    (tmp_path / name).write_text(text.format(folder))
    assert package_folders([code / "train.py"]) == {("shc",): tmp_path / folder}
    assert "FM308" in {use.code for use in scan_paths([tmp_path]).uses}


@pytest.mark.parametrize(
    "text", ['package-dir = { "" = "src" }\n', "package-dir = 3\n", "[tool.setuptools.package-dir]\n", "\xff"]
)
def test_what_says_nothing_of_a_package(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
    (tmp_path / "train.py").write_text("")
    assert package_folders([tmp_path / "train.py"]) == {}
    assert package_folders([]) == {}
