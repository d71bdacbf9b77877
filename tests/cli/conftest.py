from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, plan_conversion
from fsdp_migrate.cli import main
from tests.rank_bodies import checkpoints
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CODE = "from torch.distributed.fsdp import FullyShardedDataParallel as F\nmodel = F(net)\nmodel.apply(f)\n"


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that FSDP2 loads as it is. Not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoints") / "clean"
    run_ranks(checkpoints.save_fsdp1, str(folder))
    if plan_conversion(inspect_checkpoint(folder)).action == "none":
        return folder
    # From torch 2.15, whose own is not for older ones.
    convert_checkpoint(folder, folder.with_name("converted"))
    return folder.with_name("converted")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a compiled model, whose names have a wrapper's prefix. Not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoints") / "compiled"
    run_ranks(checkpoints.save_fsdp1, str(folder), "_orig_mod.")
    return folder


@pytest.fixture(scope="session")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a leading `module.` in its names, which a user should know of."""
    folder = tmp_path_factory.mktemp("checkpoints") / "prefixed"
    run_ranks(checkpoints.save_fsdp1, str(folder), "module.")
    return folder


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder with one script that uses FSDP1, and one that does not."""
    (tmp_path / "train.py").write_text(CODE)
    (tmp_path / "other.py").write_text("x = 1\n")
    return tmp_path


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run the command with ``--json``; return the exit code and the one document on stdout."""

    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--json"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert document["schema_version"] == 1
        assert document["command"] == arguments[0]
        return code, document

    return run


def fingerprint(path: Path) -> dict[str, str]:
    """Return a digest of every file under ``path``, or of the file itself."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }
