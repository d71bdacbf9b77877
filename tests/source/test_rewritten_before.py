"""A project that was rewritten before: what its other files hold is shown as before the rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.projects import WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = (
    "import torch.distributed as dist\nfrom wrap import wrap\n\n"
    "def main(net):\n    model = wrap(net)\n    for p in model.parameters():\n        {}\n"
)
REDUCED = TRAIN.format("dist.all_reduce(p.grad)")


def codes_in(folder: Path, name: str) -> list[str]:
    uses = (use for each in scan_paths([folder]).files for use in each.uses if each.path.endswith(name))
    return [use.code for use in uses]


def _rewritten(folder: Path, train: str) -> None:
    (folder / "wrap.py").write_text(WRAP)
    (folder / "train.py").write_text(train)
    rewrite_paths([folder], write=True)
    assert "prepare_fully_shard" in (folder / "wrap.py").read_text()


def test_a_file_that_is_written_after_the_rewrite(tmp_path: Path) -> None:
    _rewritten(tmp_path, TRAIN.format("pass"))
    (tmp_path / "train.py").write_text(REDUCED)
    assert codes_in(tmp_path, "train.py") == ["FM423"]
    (tmp_path / "train.py").write_text(TRAIN.format("dist.all_reduce(p.grad.to_local())"))
    assert codes_in(tmp_path, "train.py") == []


def test_what_was_settled_stays_so(tmp_path: Path) -> None:
    """Whoever deletes a comment has seen to it, and meets it no second time."""
    _rewritten(tmp_path, REDUCED)
    train = tmp_path / "train.py"
    lines = train.read_text().splitlines(keepends=True)
    assert any("FM423" in line for line in lines)
    train.write_text("".join(line for line in lines if "fsdp-migrate" not in line))
    assert train.read_text() == REDUCED
    assert codes_in(tmp_path, "train.py") == []
    assert rewrite_paths([tmp_path]).changed == ()


def test_a_project_without_copies_is_done(tmp_path: Path) -> None:
    """A migrated project writes code for FSDP2, of which nothing is asked."""
    _rewritten(tmp_path, TRAIN.format("pass"))
    (tmp_path / "wrap.py.fsdp1").unlink()
    (tmp_path / "train.py").write_text(REDUCED)
    assert codes_in(tmp_path, "train.py") == []


def test_a_copy_of_what_never_sharded_shows_nothing(tmp_path: Path) -> None:
    _rewritten(tmp_path, TRAIN.format("pass"))
    (tmp_path / "wrap.py.fsdp1").write_text("def wrap(net):\n    return net\n")
    (tmp_path / "train.py").write_text(REDUCED)
    assert codes_in(tmp_path, "train.py") == []
