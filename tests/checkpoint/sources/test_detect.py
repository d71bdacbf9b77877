"""What a folder or a file is said to be, where it is no checkpoint, or only a part of one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    UnsupportedFeatureError,
)
from tests.checkpoint.damage import refuse
from tests.checkpoint.samples import (
    COMPOSER,
    DATA,
    PLAIN,
    copy_of,
)


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_nothing_there(tmp_path: Path) -> None:
    refuse(tmp_path / "missing", tmp_path, "There is nothing at", CheckpointNotFoundError)


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", tmp_path, "is an empty folder", CheckpointFormatError)


def test_data_without_metadata(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / ".metadata").unlink()
    message = refuse(source, tmp_path, "no `.metadata`", CheckpointNotFoundError)
    assert "2 `.distcp` files" in message


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_one_file_of_a_checkpoint_points_to_its_folder(name: str, tmp_path: Path) -> None:
    refuse(PLAIN / name, tmp_path, "Name its folder instead", CheckpointFormatError)


def test_any_other_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refuse(tmp_path / "notes.txt", tmp_path, "is no checkpoint", CheckpointFormatError)


def test_a_folder_of_another_kind_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("config.json", "a.safetensors", "b.safetensors"):
        (tmp_path / "other" / name).write_bytes(b"x")
    refuse(tmp_path / "other", tmp_path, "Hugging Face", UnsupportedFeatureError)


def test_files_of_a_folder_are_not_said_to_be_convertible_before_they_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("dense.pt", "tables_0.pt", "tables_1.pt"):
        (tmp_path / "other" / name).write_bytes(b"x")
    refuse(
        tmp_path / "other", tmp_path, "each of which `inspect` looks at by itself", UnsupportedFeatureError
    )


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_bytes(b"x")
    refuse(tmp_path / "other", tmp_path, "holds no checkpoint", CheckpointFormatError)


def test_a_parent_names_the_checkpoints_in_it(tmp_path: Path) -> None:
    message = refuse(COMPOSER.parent, tmp_path, "it holds one", CheckpointFormatError)
    assert str(COMPOSER) in message
    message = refuse(DATA / "torch-2.13.0", tmp_path, "it holds 2", CheckpointFormatError)
    assert "`flat.dcp`, `plain.dcp`" in message


def test_a_parent_names_saved_states_beside_the_checkpoints_too(tmp_path: Path) -> None:
    run = tmp_path / "ckpt"
    shutil.copytree(PLAIN, run / "dcp")
    names = ("local/state_rank0.pt", "local/state_rank1.pt", "hf/model.safetensors", "logs/train.log", "x.pt")
    for name in (*names, "dcp/rng/state_0.pth"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"x")
    message = refuse(run, tmp_path, "Name the one that you mean", CheckpointFormatError)
    assert "it holds `dcp`, and files of saved states in `hf`, `local`." in message
