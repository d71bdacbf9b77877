"""Files that Composer compressed or put into an archive, and its symlink files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import tempfile
from typing import TYPE_CHECKING, Any

import fsspec
import lz4.frame
import pytest
import torch
import zstandard

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.execution.execute import execute_plan
from fsdp_migrate.checkpoint_convert.storage import compressed
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointMemoryError,
    CheckpointNotFoundError,
    CheckpointReadError,
    UnsupportedFeatureError,
)
from tests.checkpoint.samples import DATA, load_with_torch, saved
from tests.checkpoint.sources.test_full_state import assert_equal, training_state


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def composer_state() -> dict[str, Any]:
    state = training_state()
    return {
        "state": {"model": state["model"], "optimizers": {"AdamW": state["optimizer"]}, "run_name": "r"},
        "rng": [{"torch": torch.get_rng_state()}],
    }


def archive(data: bytes, mode: Any, *, others: dict[str, bytes] | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in {**(others or {}), "composer_states.pt": data}.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "pt.gz": gzip.compress,
    "pt.bz2": bz2.compress,
    "pt.xz": lzma.compress,
    "pt.lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    "pt.lz4": lz4.frame.compress,
    "pt.zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "tar": lambda data: archive(data, "w"),
    "tar.gz": lambda data: archive(data, "w:gz"),
    "tgz": lambda data: archive(data, "w:gz"),
    "tar.bz2": lambda data: archive(data, "w:bz2"),
    "tar.lzma": lambda data: archive(data, "w:xz"),
}


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "unpacked-here"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.alike
@pytest.mark.parametrize("suffix", PACKERS)
def test_what_composer_packed_is_what_it_saved(suffix: str, tmp_path: Path, temporary_folder: Path) -> None:
    state = composer_state()
    source = tmp_path / f"ep0-ba2-rank0.{suffix}"
    source.write_bytes(PACKERS[suffix](saved(state)))
    before = source.read_bytes()
    manifest = inspect_checkpoint(source)
    assert (manifest.framework, manifest.source) == ("composer", str(source))
    assert "packed" in manifest.evidence
    convert_checkpoint(source, tmp_path / "out", world_size=2)
    assert_equal(load_with_torch(tmp_path / "out"), state)
    assert verify_checkpoints(source, tmp_path / "out").is_same
    assert source.read_bytes() == before
    # One copy at a time, however often it was opened.
    assert len(list(temporary_folder.iterdir())) == 1


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("name", ["best.pth.tar", "best.tar", "best.pt.gz"])
def test_a_file_of_torch_save_by_the_name_of_an_archive(
    name: str, is_zip: bool, tmp_path: Path, temporary_folder: Path
) -> None:
    """timm, and torch's own example for ImageNet, call theirs ``model_best.pth.tar``."""
    state = training_state()
    source = tmp_path / name
    torch.save(state, source, _use_new_zipfile_serialization=is_zip)
    manifest = inspect_checkpoint(source)
    assert (manifest.layout, "packed" in manifest.evidence) == ("file", False)
    convert_checkpoint(source, tmp_path / "out", world_size=2)
    assert_equal(load_with_torch(tmp_path / "out"), state)
    assert list(temporary_folder.iterdir()) == []


def test_behind_a_url(tmp_path: Path) -> None:
    state = composer_state()
    fsspec.filesystem("memory").pipe("/packed/ep0-ba2-rank0.pt.zst", PACKERS["pt.zst"](saved(state)))
    convert_checkpoint("memory://packed/ep0-ba2-rank0.pt.zst", tmp_path / "out")
    assert_equal(load_with_torch(tmp_path / "out"), state)


@pytest.mark.parametrize("suffix", ["pt.gz", "pt.bz2", "pt.lz4", "pt.zst", "pt.xz", "tar", "tar.gz"])
def test_what_was_cut_off(suffix: str, tmp_path: Path, temporary_folder: Path) -> None:
    data = PACKERS[suffix](saved(composer_state()))
    source = tmp_path / f"a.{suffix}"
    for size in (0, 1, len(data) // 2):
        source.write_bytes(data[:size])
        with pytest.raises(CheckpointFormatError):
            inspect_checkpoint(source)
    source.write_bytes(b"\0garbage" * 999)
    with pytest.raises(CheckpointFormatError):
        inspect_checkpoint(source)
    assert len(list(temporary_folder.iterdir())) <= 1


def test_archives_of_something_else(tmp_path: Path) -> None:
    source = tmp_path / "a.tar"
    state = composer_state()
    source.write_bytes(archive(saved(state), "w", others={"../../evil": b"x", "rank_0/notes.txt": b"y"}))
    manifest = inspect_checkpoint(source)
    (left,) = [f.message for f in manifest.findings if f.code == "FM241"]
    assert "rank_0/notes.txt" in left
    assert not (tmp_path.parent / "evil").exists()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("composer_states.pt")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    source.write_bytes(file.getvalue())
    with pytest.raises(CheckpointFormatError, match=r"expected `composer_states.pt`"):
        inspect_checkpoint(source)


def test_no_room_and_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary_folder: Path
) -> None:
    source = tmp_path / "a.pt.gz"
    # 64 MiB in 64 KiB: what is unpacked is held against the room that there is.
    source.write_bytes(gzip.compress(b"PK\x03\x04" + bytes(64 << 20)))
    monkeypatch.setattr(compressed, "free_space", lambda _: 1 << 20)
    with pytest.raises(CheckpointReadError, match="TMPDIR"):
        inspect_checkpoint(source)
    assert not list(temporary_folder.iterdir())
    (tmp_path / "a.pt.lzo").write_bytes(b"x")
    with pytest.raises(UnsupportedFeatureError, match=r"`.lzo`.*unpack the file"):
        inspect_checkpoint(tmp_path / "a.pt.lzo")


def test_a_packed_file_that_changes(tmp_path: Path) -> None:
    source = tmp_path / "a.pt.gz"
    source.write_bytes(gzip.compress(saved({"model": {"w": torch.ones(2)}})))
    plan = plan_conversion(inspect_checkpoint(source))
    source.write_bytes(gzip.compress(saved({"model": {"w": torch.zeros(2)}})))
    with pytest.raises(CheckpointFormatError, match="has changed since it was inspected"):
        execute_plan(plan, tmp_path / "out")
    convert_checkpoint(source, tmp_path / "out")
    assert torch.equal(load_with_torch(tmp_path / "out")["model"]["w"], torch.zeros(2))


def test_composers_symlink_files(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    state = composer_state()
    (folder / "ep0-ba2-rank0.pt.gz").write_bytes(gzip.compress(saved(state)))
    shutil.copytree(DATA / "composer-0.32.1" / "ep0-ba2", folder / "ep0-ba2")
    for name, target in (
        ("latest-rank0.pt.gz", "run/checkpoints/ep0-ba2-rank0.pt.gz"),
        ("latest", "bucket/run/checkpoints/ep0-ba2"),
        ("metadata", "run/checkpoints/ep0-ba2/.metadata"),
        ("gone", "run/checkpoints/ep1-ba4"),
        ("evil", "../../../etc/passwd"),
        ("elsewhere", str(tmp_path.parent)),
        ("binary", "\0\0"),
        ("empty", ""),
    ):
        (folder / f"{name}.symlink").write_text(target)
    convert_checkpoint(folder / "latest-rank0.pt.gz.symlink", tmp_path / "out")
    assert_equal(load_with_torch(tmp_path / "out"), state)
    for name in ("latest", "metadata"):
        manifest = inspect_checkpoint(folder / f"{name}.symlink")
        assert (manifest.source, manifest.framework) == (str(folder / "ep0-ba2"), "composer")
    for name in ("gone", "elsewhere", "missing"):
        with pytest.raises(CheckpointNotFoundError):
            inspect_checkpoint(folder / f"{name}.symlink")
    for name in ("evil", "binary", "empty"):
        with pytest.raises(CheckpointFormatError, match="holds no path"):
            inspect_checkpoint(folder / f"{name}.symlink")


def test_too_little_memory_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.pt.gz").write_bytes(gzip.compress(b"PK"))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compressed, "_copy", fail)
    with pytest.raises(CheckpointMemoryError, match="not enough memory"):
        inspect_checkpoint(tmp_path / "model.pt.gz")
