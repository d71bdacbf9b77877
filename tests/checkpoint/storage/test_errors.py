"""Names that nobody means to give: a slip of somebody's is never called a bug."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.manifest.boxes import row_major_strides
from fsdp_migrate.checkpoint_convert.storage.errors import reading_from, writing_to
from fsdp_migrate.cli import main
from fsdp_migrate.errors import CheckpointError, UnsupportedFeatureError
from tests.checkpoint.samples import PLAIN


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "name",
    ["a\0b", "\ud800", "loop", "n" * 5000, "/".join(["n" * 200] * 30), "fifo", "loop/below", "file/below"],
    ids=["nul", "surrogate", "loop", "long", "deep", "fifo", "in a loop", "in a file"],
)
def test_a_path_that_cannot_be(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    before, path = sorted(tmp_path.iterdir()), f"{tmp_path}/{name}"
    commands = [["inspect", path], ["verify", path, str(PLAIN)]]
    commands += [["convert", str(PLAIN), path, *more] for more in ([], ["--overwrite"], ["--resume"])]
    for command in commands:
        assert main(command) == 1, command[0]
        said = capsys.readouterr().err
        assert said.startswith("Error: "), command[0]
        assert "Traceback" not in said
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("url", ["s3://", "://x", "memory://", "reference://x", "nope://x"])
def test_a_url_that_names_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `s3://$BUCKET` does where the variable is empty: a folder `s3:` was written here instead."""
    monkeypatch.chdir(tmp_path)
    for command in (["inspect", url], ["convert", str(PLAIN), url]):
        assert main(command) == 1
        assert capsys.readouterr().err.startswith(f"Error: '{url.rstrip('/')}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    there = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    convert_checkpoint(PLAIN, there, world_size=3, checksums=True)
    assert verify_checkpoints(there, PLAIN).is_same
    convert_checkpoint(there, tmp_path / "back", world_size=2)
    convert_checkpoint(PLAIN, there, world_size=2, overwrite=True)
    assert verify_checkpoints(there, PLAIN).is_same


def test_a_tensor_whose_name_is_no_text(tmp_path: Path) -> None:
    torch.save({"model": {"a\ud800": torch.ones(2)}}, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    assert "model.a\ud800" in inspect_checkpoint(tmp_path / "out").entries
    with pytest.raises(UnsupportedFeatureError, match=r"a\\ud800.*--rename"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "hf", to="hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("around", [reading_from, writing_to])
def test_whose_mistake_an_error_of_python_is(around: Callable[[str], AbstractContextManager[None]]) -> None:
    """A client says in a ValueError that it cannot read a URL; one of this package is a bug of it."""
    with (
        pytest.raises(CheckpointError, match=r"'s3://b' could not be .*null (byte|character)"),
        around("s3://b"),
    ):
        Path("a\0b").stat()
    with pytest.raises(TypeError), around("s3://b"):
        row_major_strides((2, None))  # type: ignore[arg-type]
