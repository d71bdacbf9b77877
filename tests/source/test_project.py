"""Which file a name of another file is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from tests.source.projects import CLIPPED, FSDP, LOOP, WRAP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("package", "imported"),
    [
        ({"pkg/dist.py": WRAP}, "from pkg.dist import wrap"),
        ({"pkg/dist.py": WRAP}, "from .dist import wrap"),
        ({"pkg/dist.py": WRAP, "pkg/__init__.py": "from .dist import wrap\n"}, "from pkg import wrap"),
        ({"dist.py": WRAP}, "from ..dist import wrap"),
        ({"pkg/dist.py": WRAP}, "from . import dist\nwrap = dist.wrap"),
        (
            {"pkg/dist.py": WRAP, "other/dist.py": "def wrap(net):\n    return net\n"},
            "from .dist import wrap",
        ),
    ],
)
def test_what_another_file_returns(tmp_path: Path, package: dict[str, str], imported: str) -> None:
    files = {**package, "pkg/main.py": f"{imported}\nmodel = wrap(net)\nmodel.clip_grad_norm_(1.0)\n"}
    assert CLIPPED in after(tmp_path, files, "pkg/main.py")


def test_functions_of_the_same_name_elsewhere_stay(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "plain.py": "def wrap(net):\n    return net\n",
        "other.py": "from plain import wrap\nmodel = wrap(net)\nmodel.clip_grad_norm_(1.0)\n",
        "broken.py": "def wrap(:\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert [file.path.rpartition("/")[2] for file in rewrite_paths([tmp_path]).changed] == ["dist.py"]


def test_of_two_files_of_one_name_the_one_nearer_the_root_is_taken(tmp_path: Path) -> None:
    files = {
        "a/utils/loop.py": "def train(model):\n    pass\n",
        "utils/loop.py": LOOP,
        "train/main.py": f"{FSDP}from utils.loop import train\ntrain(FSDP(net))\n",
    }
    assert CLIPPED in after(tmp_path, files, "utils/loop.py")
