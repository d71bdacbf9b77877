"""Disks that are full or broken, sources that vanish, two at once: an error, and nothing half done."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoint_convert import (
    check_checkpoint,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointReadError,
    OutputError,
    OutputExistsError,
)
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, copy_of
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


WAYS: list[dict[str, Any]] = [{}, {"link": "copy"}, {"world_size": 3}, {"dtype": "bf16", "checksums": True}]
MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "--"]


def _may_mount(folder: Path) -> bool:
    try:
        probe = [*MOUNT, "mount", "-t", "tmpfs", "none", str(folder)]
        return subprocess.run(probe, capture_output=True, check=False, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


def test_disks_of_every_size_that_is_too_small(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not _may_mount(disk):
        # No user namespaces here: the limit of this process stands for the end of the disk.
        _files_of_every_size_that_is_too_small(tmp_path)
        return
    before = contents(PLAIN)
    command = [*MOUNT, sys.executable, "-m", "tests.checkpoint.small_disk", str(PLAIN), str(disk), "16384"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines()]
    full = [line for line in lines if line[2] != "done"]
    assert {line[2] for line in full} == {"OutputError: full"}
    assert {line[3] for line in full} == {"[]"}
    assert len(full) > 15
    assert [line[0] for line in lines if line[2] == "done"] == ["rewrite", "copy", "sums"]
    assert contents(PLAIN) == before


def _files_of_every_size_that_is_too_small(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for size in range(0, 1 << 20, 1 << 14):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
            try:
                convert_checkpoint(PLAIN, tmp_path / "out", world_size=3)
            except OutputError:
                assert_nothing_left(tmp_path, "disk")
            else:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    _files_of_every_size_that_is_too_small(tmp_path)


def obey_modes() -> None:
    """Take from this process what lets root read and write whatever the mode of a file says."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; it takes effect at the next exec


RUN = """
import sys
from fsdp_migrate.checkpoint_convert import convert_checkpoint, check_checkpoint
from fsdp_migrate.errors import FSDPMigrateError
for action in (
    lambda: convert_checkpoint(sys.argv[1], sys.argv[2], world_size=3, overwrite="old" in sys.argv[2]),
    lambda: convert_checkpoint(sys.argv[1], sys.argv[2], link="copy", overwrite="old" in sys.argv[2]),
):
    try:
        action()
        print("done")
    except FSDPMigrateError as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
"""


@pytest.mark.parametrize(
    ("locked", "mode", "output", "kind"),
    [
        ("locked", 0o500, "locked/out", "OutputError"),
        ("locked", 0o000, "locked/out", "OutputError"),
        ("locked", 0o400, "locked/a/out", "OutputError"),
        ("locked", 0o500, "locked/old", "OutputError"),
        ("source/__1_0.distcp", 0o000, "out", "CheckpointReadError"),
        ("source/.metadata", 0o000, "out", "CheckpointReadError"),
        ("source", 0o000, "out", "CheckpointReadError"),
        ("source", 0o400, "out", "CheckpointReadError"),
    ],
)
def test_permission_denied(locked: str, mode: int, output: str, kind: str, tmp_path: Path) -> None:
    copy_of(PLAIN, tmp_path, "source")
    (tmp_path / "locked").mkdir()
    copy_of(PLAIN, tmp_path / "locked", "old")
    before = contents(tmp_path)
    (tmp_path / locked).chmod(mode)
    command = [sys.executable, "-c", RUN, str(tmp_path / "source"), str(tmp_path / output)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, preexec_fn=obey_modes, cwd=ROOT
    )
    (tmp_path / locked).chmod(0o700)
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        assert line.startswith(kind), line
        assert "Permission denied" in line
    assert len(done.stdout.splitlines()) == 2
    assert contents(tmp_path) == before


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_read_error_at_every_read(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv, count, fail_at = os.preadv, 0, 1 << 60

    def broken(fd: int, buffers: Any, offset: int) -> int:
        nonlocal count
        count += 1
        if count > fail_at:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", broken)
    convert_checkpoint(PLAIN, tmp_path / "whole", **way)
    total = count
    for number in {*range(4), *range(0, total, max(total // 12, 1)), total - 1}:
        count, fail_at = 0, number
        with pytest.raises(
            CheckpointReadError, match=r"could not be read at byte .*Input/output error"
        ) as caught:
            convert_checkpoint(PLAIN, tmp_path / "out", **way)
        assert caught.value.errno == errno.EIO
        assert_nothing_left(tmp_path, "whole")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_source_that_vanishes(way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, count, total = os.preadv, 0, 1 << 60
    source = tmp_path / "source"

    def vanish(fd: int, buffers: Any, offset: int) -> int:
        nonlocal count
        count += 1
        if count == total:
            shutil.rmtree(source)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", vanish)
    copy_of(PLAIN, tmp_path, "source")
    convert_checkpoint(source, tmp_path / "whole", **way)
    reads = count
    for number in (1, 2, reads // 2, reads - 1):
        shutil.rmtree(source, ignore_errors=True)
        copy_of(PLAIN, tmp_path, "source")
        count, total = 0, number
        with pytest.raises(CheckpointError):
            convert_checkpoint(source, tmp_path / "out", **way)
        assert_nothing_left(tmp_path, "whole")


@pytest.mark.parametrize(
    "look",
    [
        check_checkpoint,
        lambda source: inspect_checkpoint(source, deep=True),
        lambda s: verify_checkpoints(s, PLAIN),
    ],
    ids=["check", "deep", "verify"],
)
def test_a_source_that_vanishes_while_it_is_looked_at(
    look: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv
    source = tmp_path / "source"
    for number in (1, 5, 40):
        copy_of(PLAIN, tmp_path, "source")
        count = 0

        def vanish(fd: int, buffers: Any, offset: int, number: int = number) -> int:
            nonlocal count
            count += 1
            if count == number:
                shutil.rmtree(source)
            return preadv(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", vanish)
        try:
            result = look(source)
        except CheckpointError:
            continue
        # What was open could be read to its end.
        assert result is not None


def test_a_file_that_vanishes_once_it_is_open(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    source.write_bytes(b"data")
    folder = open_folder(source)
    assert folder.files() == {"a.pt": 4}
    source.unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"a\.pt' is not there"):
        folder.files()


def test_several_conversions_into_one_output_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from fsdp_migrate.checkpoint_convert import convert_checkpoint\n"
        "from fsdp_migrate.errors import OutputError, OutputExistsError\n"
        "print('ready', flush=True); sys.stdin.read()\n"
        "try:\n"
        "    convert_checkpoint(sys.argv[1], sys.argv[2], world_size=3)\n"
        "    print('done')\n"
        "except (OutputError, OutputExistsError) as error:\n"
        "    print('refused')\n"
    )
    command = [sys.executable, "-c", code, str(PLAIN), str(tmp_path / "out")]
    pipe = subprocess.PIPE
    crew = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(3)]
    for process in crew:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    said = []
    for process in crew:
        assert process.stdin is not None
        process.stdin.close()
    for process in crew:
        assert process.stdout is not None
        said.append(process.stdout.read().strip())
        process.stdout.close()
        process.wait(timeout=400)
    assert sorted(said) == ["done", "refused", "refused"]
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
    assert_nothing_left(tmp_path, "out")


def test_an_output_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to("elsewhere")
    with pytest.raises(OutputExistsError):
        convert_checkpoint(PLAIN, tmp_path / "out", world_size=3)
    assert_nothing_left(tmp_path, "elsewhere", "out")
    assert_nothing_left(tmp_path / "elsewhere")


def linked_metadata(source: Path, secret: Path) -> Path:
    shutil.copytree(PLAIN, source)
    (source / ".metadata").replace(secret)
    (source / ".metadata").symlink_to(secret)
    return source


def linked_piece(source: Path, secret: Path) -> Path:
    source.mkdir()
    save_file({"a": torch.ones(3)}, secret)
    save_file({"b": torch.ones(3)}, source / "model-00001-of-00002.safetensors")
    (source / "model-00002-of-00002.safetensors").symlink_to(secret)
    return source


def linked_bins(source: Path, secret: Path) -> Path:
    source.mkdir()
    torch.save({"a": torch.ones(3)}, secret)
    torch.save({"b": torch.ones(3)}, source / "pytorch_model-00001-of-00002.bin")
    (source / "pytorch_model-00002-of-00002.bin").symlink_to(secret)
    return source


@pytest.mark.parametrize("make", [linked_metadata, linked_piece, linked_bins])
def test_links_out_of_the_folder(make: Callable[[Path, Path], Path], tmp_path: Path) -> None:
    source = make(tmp_path / "source", tmp_path / "secret")
    for action in (
        inspect_checkpoint,
        check_checkpoint,
        lambda source: convert_checkpoint(source, tmp_path / "out"),
    ):
        with pytest.raises(CheckpointFormatError, match="is a link to something outside"):
            action(source)
    assert_nothing_left(tmp_path, "source", "secret")


def cached_model(folder: Path) -> Path:
    """Make what `huggingface_hub.snapshot_download` leaves."""
    snapshot = folder / "models--org--name" / "snapshots" / "0f"
    blobs = folder / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": torch.ones(3)}, blobs / "12ab")
    (blobs / "34cd").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/12ab")
    (snapshot / "config.json").symlink_to("../../blobs/34cd")
    return snapshot


def test_links_within_the_cache_of_a_model_are_followed(tmp_path: Path) -> None:
    source = cached_model(tmp_path / "hub")
    convert_checkpoint(source, tmp_path / "out", to="hf", dtype="bf16")
    assert contents(tmp_path / "out").keys() == {"model.safetensors", "config.json"}
    assert not (tmp_path / "out" / "config.json").is_symlink()
    assert verify_checkpoints(source, tmp_path / "out", dtype="bf16").is_same


@pytest.mark.parametrize("way", ["secret", "deeper", "another name", "blobs elsewhere"])
def test_links_out_of_the_cache_of_a_model_are_not(way: str, tmp_path: Path) -> None:
    source = cached_model(tmp_path / "hub")
    cache = tmp_path / "hub" / "models--org--name"
    file = source / "model.safetensors"
    if way in ("secret", "deeper"):
        secret = cache / "blobs" / "x" / "y" if way == "deeper" else tmp_path / "secret"
        secret.parent.mkdir(exist_ok=True)
        save_file({"a": torch.ones(3)}, secret)
        file.unlink()
        file.symlink_to(secret)
    elif way == "another name":
        cache.rename(tmp_path / "hub" / "mine")
        source = tmp_path / "hub" / "mine" / "snapshots" / "0f"
    else:
        (cache / "blobs").rename(tmp_path / "elsewhere")
        (cache / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointFormatError, match="is a link to something outside"):
        convert_checkpoint(source, tmp_path / "out")


@pytest.mark.parametrize("name", [".metadata", "__1_0.distcp"])
@pytest.mark.parametrize("kind", ["loop", "pipe", "zeros", "folder"])
def test_files_that_are_none(name: str, kind: str, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    (source / name).unlink()
    if kind == "loop":
        (source / name).symlink_to(name)
    elif kind == "pipe":
        os.mkfifo(source / name)
    elif kind == "zeros":
        (source / name).symlink_to("/dev/zero")
    else:
        (source / name).mkdir()
    with pytest.raises(CheckpointError):
        convert_checkpoint(source, tmp_path / "out")
    assert_nothing_left(tmp_path, "source")
